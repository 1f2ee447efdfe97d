//! Queueing disciplines and their drops: `tc -s qdisc`.

use std::time::Duration;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};

/// Nanoseconds per tick of `tc_netem_qopt` (`PSCHED_SHIFT`, include/net/pkt_sched.h).
const TICK: u128 = 64;
/// `TCA_OPTIONS` (linux/rtnetlink.h). For netem, it is a struct.
const OPTIONS: u16 = 2;

/// A queueing discipline of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Index of the link.
    pub link: u32,
    /// Kind (`fq_codel`, `noqueue`, `mq` …).
    pub kind: String,
    /// Major number of the handle; 0: a default one.
    pub handle: u16,
    /// Packets dropped; wraps at 32 bits.
    pub drops: u32,
    /// Packets that the driver returned.
    pub requeues: u32,
    /// Packets in the queue now.
    pub queued: u32,
}

impl Netlink {
    /// Sets the root discipline of a link to `netem`, which delays each packet.
    ///
    /// `limit` is the number of delayed packets, beyond which it drops. Delays above 274 s (32 bits
    /// of 64 ns ticks) are reduced to that.
    ///
    /// # Errors
    /// `ENOENT` without netem; `ENODEV`.
    pub fn delay(&self, link: &str, time: Duration, limit: u32) -> Result<()> {
        let mut message = TcMessage::default();
        message.header.index = self.link(link)?.index.cast_signed();
        message.header.parent = TcHandle::ROOT;
        // Longer delays do not fit into the kernel's field.
        let ticks = u32::try_from(time.as_nanos() / TICK).unwrap_or(u32::MAX);
        // `struct tc_netem_qopt`: latency, limit, loss, gap, duplicate, jitter.
        let options: Vec<u8> =
            [ticks, limit, 0, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        message.attributes = vec![
            TcAttribute::Kind("netem".to_owned()),
            TcAttribute::Other(DefaultNla::new(OPTIONS, options)),
        ];
        self.change(
            RouteNetlinkMessage::NewQueueDiscipline(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            "add netem to",
            link,
        )
    }

    /// Lists all queueing disciplines of the namespace.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn qdiscs(&self) -> Result<Vec<Qdisc>> {
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        self.dump(request, "list", "queueing disciplines", |answer| {
            let RouteNetlinkMessage::NewQueueDiscipline(message) = answer else { return };
            let mut qdisc = Qdisc {
                link: message.header.index.unsigned_abs(),
                kind: String::new(),
                handle: message.header.handle.major,
                drops: 0,
                requeues: 0,
                queued: 0,
            };
            for attribute in message.attributes {
                match attribute {
                    TcAttribute::Kind(kind) => qdisc.kind = kind,
                    TcAttribute::Stats2(stats) => {
                        for stat in stats {
                            if let TcStats2::Queue(queue) = stat {
                                qdisc.drops = queue.drops;
                                qdisc.requeues = queue.requeues;
                                qdisc.queued = queue.qlen;
                            }
                        }
                    }
                    _ => {}
                }
            }
            all.push(qdisc);
        })?;
        Ok(all)
    }
}
