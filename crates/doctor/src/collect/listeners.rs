//! Listening TCP sockets of the namespaces whose counters show that connections found none, or a full
//! queue. Most namespaces are spared the request.

use super::Subject;
use crate::host::{Namespace, Reading};

/// Reason why the sockets of some namespaces are not read.
const OF_ANOTHER: &str = "sockets of another user's namespace are not read";

/// Reads the sockets after the second reading of the counters.
pub(super) fn read(subjects: &[Subject], namespaces: &mut [Namespace]) {
    for (subject, namespace) in subjects.iter().zip(namespaces) {
        namespace.listeners = match has_refused(namespace) {
            false => Reading::Read(Vec::new()),
            // A user could open any number of sockets.
            true if subject.is_untrusted => Reading::Unread(OF_ANOTHER.to_owned()),
            true => match subject.netns.run(netstate::inet_diag::tcp_queues) {
                Ok(read) => Reading::from_result(read),
                Err(error) => Reading::Unread(error.to_string()),
            },
        };
    }
}

/// Whether connections were reset or dropped at a listening socket between the readings.
fn has_refused(namespace: &Namespace) -> bool {
    namespace.snmp.get().is_some_and(|pair| {
        let moved = pair.after.since(&pair.before);
        moved.tcp.out_rsts > 0 || moved.tcp_ext.listen_overflows > 0
    })
}
