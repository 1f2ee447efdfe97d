//! OV110: IPsec drops packets.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV110",
    title: "IPsec drops packets",
    severity: Severity::Error,
    explanation: "The counters of the kernel's IPsec (xfrm) for dropped packets increase. \
        XfrmInTmplMismatch: a policy requires encryption, and plain packets arrive, as on an \
        encrypted Swarm network of which one end lost its state. XfrmInNoStates, XfrmInStateProtoError \
        and XfrmInStateSeqError: the keys or states of both ends differ. XfrmInPolBlock, \
        XfrmOutPolBlock: a policy blocks. XfrmOutNoStates: the key exchange has not succeeded. \
        Compare `ip xfrm policy` and `ip xfrm state` of both ends.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        // A host that an earlier version saved has none.
        let Some(pair) = namespace.xfrm.get() else { continue };
        let mut texts = Vec::new();
        for (name, after) in &pair.after {
            let moved = after.saturating_sub(pair.before.get(name).copied().unwrap_or(0));
            // Acquiring a state drops the first packet of each connection, which is normal.
            if moved > 0 && name != "XfrmAcquireError" {
                texts.push(format!("{name} +{moved}"));
            }
        }
        if texts.is_empty() {
            continue;
        }
        outcome.add(
            CHECK
                .in_namespace(namespace, "xfrm")
                .evidence(texts.join(", "), "/proc/net/xfrm_stat")
                .cost(Cost::estimated(0.9, "packets that a policy of IPsec selects"))
                .confidence(Confidence::High),
        );
    }
}
