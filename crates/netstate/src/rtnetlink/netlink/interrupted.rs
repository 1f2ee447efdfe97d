//! Tests dumps that the kernel marks as interrupted: a link is added or removed between two
//! datagrams of a list of links.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use netlink_packet_route::link::LinkMessage;
use test_support::{need, require};

use super::*;
use crate::MacAddr;
use crate::dump;

/// One datagram holds about twenty links.
const LINKS: u8 = 200;
/// Name of the link that is added or removed during a list.
const CHANGED: &str = "changed";

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, last])
}

/// A namespace with [`LINKS`] bridges and loopback.
fn namespace() -> NetNs {
    let namespace = NetNs::new().unwrap();
    let netlink = Netlink::open_in(&namespace).unwrap();
    for number in 0..LINKS {
        netlink.add_bridge(&format!("br{number}"), mac(number), 1500).unwrap();
    }
    namespace
}

/// Adds the link, or deletes it if it exists.
fn change(netlink: &Netlink, there: &AtomicBool) {
    match there.fetch_not(Relaxed) {
        true => netlink.delete_link(CHANGED).unwrap(),
        false => netlink.add_bridge(CHANGED, mac(255), 1500).unwrap(),
    }
}

#[test]
fn a_dump_during_a_link_change_is_reported_as_interrupted() {
    require!(need::networks());
    let namespace = namespace();
    let [reader, changer] = [(); 2].map(|()| Netlink::open_in(&namespace).unwrap());
    let (there, once) = (AtomicBool::new(false), AtomicBool::new(false));
    let change_once = || {
        if !once.swap(true, Relaxed) {
            change(&changer, &there);
        }
    };
    for _ in ["it comes", "it goes"] {
        let message = || RouteNetlinkMessage::GetLink(LinkMessage::default());
        let list = |each: &(dyn Fn() + Sync)| {
            let flags = NLM_F_REQUEST | NLM_F_DUMP;
            reader.exchange(message(), flags, "list", "links", |_| each()).unwrap()
        };
        once.store(false, Relaxed);
        assert_eq!(list(&change_once), DumpOutcome::Interrupted);
        assert_eq!(list(&|| ()), DumpOutcome::Whole);
        // The same for dumps as bytes.
        let list = |each: &(dyn Fn() + Sync)| {
            // RTM_GETLINK, struct ifinfomsg.
            let request = (18, &[0; 16][..]);
            let list = || dump::dump_once(0, request, "links", |_, _| each());
            namespace.run(list).unwrap().unwrap()
        };
        once.store(false, Relaxed);
        assert_eq!(list(&change_once), DumpOutcome::Interrupted);
        assert_eq!(list(&|| ()), DumpOutcome::Whole);
    }
}

/// At most one change happens during each call, so the second attempt is complete.
#[test]
fn an_interrupted_list_is_asked_for_again_and_is_whole_then() {
    require!(need::networks());
    let namespace = namespace();
    let reader = Netlink::open_in(&namespace).unwrap();
    let asked = || reader.socket.lock().unwrap().sequence;
    let (begin, begins) = channel();
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        let namespace = &namespace;
        scope.spawn(move || {
            let (changer, there) = (Netlink::open_in(namespace).unwrap(), AtomicBool::new(false));
            for microseconds in begins {
                std::thread::sleep(Duration::from_micros(microseconds));
                change(&changer, &there);
                sender.send(()).unwrap();
            }
        });
        let mut again = 0;
        for attempt in 0..1000_u64 {
            let before = asked();
            begin.send(attempt % 40 * 50).unwrap();
            let links = reader.links().unwrap();
            let kept = links.iter().filter(|link| link.name.starts_with("br")).count();
            assert_eq!(kept, usize::from(LINKS));
            again += u32::from(asked() - before > 1);
            receiver.recv().unwrap();
            if again == 3 {
                break;
            }
        }
        drop(begin);
        assert_eq!(again, 3, "no list was interrupted, whenever the change came");
    });
}
