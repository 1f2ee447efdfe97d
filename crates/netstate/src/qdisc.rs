//! Queueing disciplines and what they dropped: `tc -s qdisc`.

use std::time::Duration;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};

/// Nanoseconds of a tick of `tc_netem_qopt` (`PSCHED_SHIFT`, include/net/pkt_sched.h).
const TICK: u128 = 64;
/// `TCA_OPTIONS` (linux/rtnetlink.h): a structure, with netem.
const OPTIONS: u16 = 2;

/// One queueing discipline of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Index of the link that has it.
    pub link: u32,
    /// Kind (`fq_codel`, `noqueue`, `mq` …).
    pub kind: String,
    /// Major number of the handle; 0: a default one.
    pub handle: u16,
    /// Packets dropped; 32 bits in the kernel, which wrap.
    pub drops: u32,
    /// Packets that the driver gave back.
    pub requeues: u32,
    /// Packets in its queue now.
    pub queued: u32,
}

impl Netlink {
    /// Gives a link the root discipline `netem`, which keeps each packet for a time.
    ///
    /// `limit` is how many packets it keeps at once; it drops others. What does not fit into 32
    /// bits of ticks of 64 ns (274 s) is kept for as long as does.
    ///
    /// # Errors
    /// `ENOENT` without netem; `ENODEV`.
    pub fn delay(&self, link: &str, time: Duration, limit: u32) -> Result<()> {
        let mut message = TcMessage::default();
        message.header.index = self.link(link)?.index.cast_signed();
        message.header.parent = TcHandle::ROOT;
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

    /// Every queueing discipline of the namespace.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
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
