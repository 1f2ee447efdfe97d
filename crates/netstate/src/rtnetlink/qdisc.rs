//! Queueing disciplines and their drops: `tc -s qdisc`.

use std::time::Duration;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption, TcStats2};
use serde::{Deserialize, Serialize};

use crate::dump::attribute;
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
    /// Bytes in the queue now.
    #[serde(default)]
    pub backlog: u32,
    /// Times the rate made a packet wait or drop; wraps at 32 bits.
    #[serde(default)]
    pub overlimits: u32,
    /// Rate and burst of a shaper.
    #[serde(default)]
    pub shaper: Option<Shaper>,
}

/// Rate limit of a token bucket (`tbf`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shaper {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may leave at once.
    pub burst: u64,
    /// Bytes that may wait.
    pub limit: u64,
}

/// Parses `TCA_OPTIONS` of tbf: a nested `struct tc_tbf_qopt` (linux/pkt_sched.h).
fn shaper(options: &[TcOption]) -> Option<Shaper> {
    // TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST.
    const PARAMETERS: u16 = 1;
    const RATE64: u16 = 4;
    const BURST: u16 = 6;
    // Options of a kind that netlink-packet-route does not parse are one attribute.
    let nested = options.iter().find_map(|option| match option {
        TcOption::Other(nla) if nla.kind() == OPTIONS => {
            let mut value = vec![0; nla.value_len()];
            nla.emit_value(&mut value);
            Some(value)
        }
        _ => None,
    })?;
    let find = |wanted: u16| attribute(&nested, wanted);
    let parameters = find(PARAMETERS)?;
    let word = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    // `struct tc_ratespec` is 12 bytes with the rate in the last 4; another for the peak rate
    // follows, then limit and buffer.
    let rate64 = find(RATE64).and_then(|bytes| bytes.first_chunk::<8>().copied());
    let rate = match rate64 {
        Some(rate) => u64::from_ne_bytes(rate),
        None => word(parameters, 8)?.into(),
    };
    let limit = word(parameters, 24)?.into();
    // The buffer is the time that the burst takes, in ticks of 64 ns.
    let ticks = word(parameters, 28)?;
    let burst = find(BURST).and_then(|bytes| word(bytes, 0)).map(u64::from);
    let burst = burst.unwrap_or_else(|| bytes_of_ticks(ticks, rate));
    Some(Shaper { rate, burst, limit })
}

/// Bytes sent in `ticks` of 64 ns at `rate` bytes per second.
pub(crate) fn bytes_of_ticks(ticks: u32, rate: u64) -> u64 {
    let bytes = u128::from(ticks) * TICK * u128::from(rate) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
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
                backlog: 0,
                overlimits: 0,
                shaper: None,
            };
            for attribute in message.attributes {
                match attribute {
                    TcAttribute::Kind(kind) => qdisc.kind = kind,
                    // The kind comes first.
                    TcAttribute::Options(options) if qdisc.kind == "tbf" => {
                        qdisc.shaper = shaper(&options);
                    }
                    TcAttribute::Stats2(stats) => {
                        for stat in stats {
                            if let TcStats2::Queue(queue) = stat {
                                qdisc.drops = queue.drops;
                                qdisc.requeues = queue.requeues;
                                qdisc.queued = queue.qlen;
                                qdisc.backlog = queue.backlog;
                                qdisc.overlimits = queue.overlimits;
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
