//! Queueing disciplines and what they dropped: `tc -s qdisc`.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcMessage, TcStats2};
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};

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
