//! A tenant that sends from many invented addresses.

use std::time::Instant;

use accel::{Accel, Cause, Wanted};
use sys::packet_socket::PacketSocket;
use test_support::{need, require};
use testbed::{Host, Offload, poll};

use super::pair::{BRIDGE, LIMIT, Pair, sh};

/// Far more than a port's budget.
const INVENTED: usize = 4000;

/// A port's budget: changes at once, and those of a second.
const PORT_BURST: u64 = 100;
const PORT_RATE: u64 = 50;

#[test]
fn a_tenant_that_invents_addresses_spends_its_own_budget_only() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let other = Host::new("other").unwrap();
    pair.a.connect("veth1", &other, "eth0", 1450).unwrap();
    sh(&pair.a, &format!("ip link set veth1 master {BRIDGE}"));
    pair.ping(&[]);
    let accel = Accel::start(pair.a.netns(), Wanted::All).unwrap();
    pair.settle_sender(&accel);
    let (before, rebuilds, start) = (accel.status(), accel.vitals().rebuilds, Instant::now());
    assert_eq!(before.unfollowed, 0);
    let index = other.netlink().link("eth0").unwrap().index;
    let socket = other.netns().run(PacketSocket::open).unwrap().unwrap();
    for number in 0..INVENTED {
        let [.., high, low] = number.to_be_bytes();
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[6..12].copy_from_slice(&[2, 0x77, 0, 0, high, low]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        // The queue of the veth pair may be full for a moment.
        poll("room for a frame", LIMIT, || {
            Ok(socket.send(index, &Default::default(), &frame).map_err(|error| error.to_string()))
        })
        .unwrap();
    }
    poll("changes beyond the budget", LIMIT, || {
        let status = accel.status();
        Ok((status.unfollowed > 0).then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    // Each followed change costs queries: the budgets of the tenants' ports and of the VXLAN device.
    let most = 3 * (PORT_BURST + start.elapsed().as_secs() * PORT_RATE + PORT_RATE);
    let followed = accel.status().followed - before.followed;
    assert!(followed <= most, "{followed} changes were followed, at most {most} expected");
    // The other tenant is as fast as before, and nothing was read for the invented addresses.
    pair.settle_sender(&accel);
    let (status, vitals) = (accel.status(), accel.vitals());
    // If the machine pauses long enough, the budget is full again.
    let is_read = vitals.rebuilds != rebuilds;
    assert!(is_read || status.entries < before.entries + INVENTED / 2, "{status:#?}");
    poll("the addresses to be read once the budget is full", LIMIT, || {
        let status = accel.status();
        let are_read = status.entries >= before.entries + INVENTED;
        Ok(are_read.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    pair.settle_sender(&accel);
    let reads = accel.vitals().rebuilds(Cause::Budget);
    assert!(reads <= 1 + start.elapsed().as_secs() / 10, "{reads}");
}
