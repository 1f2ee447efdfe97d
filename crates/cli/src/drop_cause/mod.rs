//! The rule, route, forwarding entry, neighbour, socket or setting behind a drop that `trace` saw,
//! by the state of its namespace now.
//!
//! The kernel names none. The rules are evaluated for the packet's addresses at the hooks where the
//! packet may have been; the first that drops it is named. Undecided rules are not named, and
//! neither is a drop beyond the limit of look-ups.

mod answers;
mod recent;
mod seen;
mod space;
mod words;

use std::time::{Duration, Instant};

use netstate::namespace::discover;
use observe::{Journey, Packet, PacketEnding};
use sys::nsfs::Owner;

use answers::Answers;
use recent::Recent;
use seen::{Seen, Traits};
use space::Space;

/// Shortest time between two searches for namespaces.
const SEARCHED: Duration = Duration::from_secs(1);

/// Names the causes of drops.
#[derive(Default)]
pub struct DropCauses {
    spaces: Recent<Space>,
    /// By inode of the namespace.
    answers: Answers<(u32, Object, Traits)>,
    /// Last search for namespaces.
    searched: Option<Instant>,
}

/// The kind of object that may be behind a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Object {
    Rule,
    Neighbour,
    Route,
    Forwarding,
    FixedEntry,
    OtherHost,
    WayBack,
    ForwardingSetting,
    OtherVnis,
    Sockets,
}

impl Object {
    fn of(reason: &str, function: Option<&str>) -> Option<Object> {
        Some(match (reason, function) {
            ("NETFILTER_DROP", _) => Object::Rule,
            ("NEIGH_FAILED" | "NEIGH_QUEUEFULL", _) => Object::Neighbour,
            ("IP_OUTNOROUTES" | "IP_INNOROUTES", _) | ("NOT_SPECIFIED", Some("ip_error")) => {
                Object::Route
            }
            ("NO_TX_TARGET", _) => Object::Forwarding,
            ("VXLAN_ENTRY_EXISTS", _) => Object::FixedEntry,
            ("OTHERHOST", _) => Object::OtherHost,
            ("IP_RPFILTER", _) => Object::WayBack,
            ("IP_INADDRERRORS", _) => Object::ForwardingSetting,
            ("VXLAN_VNI_NOT_FOUND", _) => Object::OtherVnis,
            ("NO_SOCKET", _) => Object::Sockets,
            // A bridge gives no reason for a frame that it would send back.
            ("NOT_SPECIFIED", Some("br_handle_frame_finish")) => Object::Forwarding,
            // The kernel's other reasons have no single object.
            _ => return None,
        })
    }

    /// Names the object in the state of the namespace.
    fn look_up(self, space: &mut Space, seen: &Seen<'_>) -> Option<String> {
        let to = seen.flow.destination;
        match self {
            Object::Rule => space.rule(seen),
            Object::Neighbour => space.neighbour(to),
            Object::Route => space.route(to),
            Object::Forwarding => space.forwarding(seen),
            Object::FixedEntry => space.fixed_entry(seen),
            Object::OtherHost => space.other_host(seen),
            Object::WayBack => space.way_back(seen),
            Object::ForwardingSetting => space.forwarding_setting(seen),
            Object::OtherVnis => space.other_vnis(seen),
            Object::Sockets => space.sockets(seen),
        }
    }
}

impl DropCauses {
    /// Adds the cause to each drop of a packet for which one is found.
    pub fn name(&mut self, journey: &Journey, packet: &mut Packet) {
        for (leg, record) in packet.legs.iter_mut().enumerate() {
            if let PacketEnding::Dropped { reason, function, cause, .. } = &mut record.ending {
                let object = Object::of(reason, function.as_deref());
                let seen = Seen::of(journey, leg);
                *cause = object.zip(seen).and_then(|(object, seen)| self.find(object, &seen));
            }
        }
    }

    /// Closes the sockets in namespaces without recent drops.
    pub fn forget_idle(&mut self) {
        self.spaces.forget(Instant::now());
    }

    fn find(&mut self, object: Object, seen: &Seen<'_>) -> Option<String> {
        let (inode, begun) = (seen.event.netns?, Instant::now());
        let with_transport = matches!(object, Object::Rule | Object::OtherVnis | Object::Sockets);
        let key = (inode, object, seen.traits(with_transport));
        if let Some(answer) = self.answers.get(&key, begun) {
            return answer;
        }
        // Look-ups must not take the time in which events are read: the object is left out.
        if !self.answers.is_room(begun) {
            return None;
        }
        let answer = self.space(inode).and_then(|space| object.look_up(space, seen));
        self.answers.put(key, answer.clone(), begun, Instant::now());
        answer
    }

    /// Returns the namespace with this inode, if it can be read.
    fn space(&mut self, inode: u32) -> Option<&mut Space> {
        let now = Instant::now();
        // Not `if let`: the borrow would last to the end.
        if self.spaces.get(inode, now).is_some() {
            return self.spaces.get(inode, now)?.refresh();
        }
        // A search takes long, and an unknown inode would ask for one at each drop.
        if self.searched.is_some_and(|at| at.elapsed() < SEARCHED) {
            return None;
        }
        self.searched = Some(now);
        let found = discover().ok()?.namespaces.remove(&inode.into())?;
        // Another user could make the rules long, and change them all the time.
        if matches!(found.owner, Owner::Below { .. }) {
            return None;
        }
        Some(self.spaces.put(inode, Space::open(found.netns)?, Instant::now()))
    }
}
