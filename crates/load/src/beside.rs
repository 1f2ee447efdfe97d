//! Bulk traffic beside timed requests: one TCP connection per direction, by threads of its own. Its
//! flows follow those of the requests in every list.

use super::{Load, Workload};

/// Bulk traffic beside the requests, over the measured interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BesideMeasured {
    /// `tcp_stream` or `tcp_maerts`.
    pub workload: Workload,
    /// Payload at the receiver, bytes.
    pub payload_bytes: u64,
    /// As [`Measured::under_way_bytes`](super::Measured::under_way_bytes).
    pub under_way_bytes: u64,
    /// Length of the interval by the receiver's clock, seconds.
    pub seconds: f64,
}

impl BesideMeasured {
    /// Payload at the receiver, bits/s.
    pub fn bits_per_s(&self) -> f64 {
        self.payload_bytes as f64 * 8.0 / self.seconds
    }
}

impl Load {
    /// Workloads of the flows beside the requests.
    pub fn workloads_beside(&self) -> &'static [Workload] {
        self.beside.map_or(&[], |beside| beside.workloads())
    }

    /// Number of all flows: those of the requests, then those beside them.
    pub fn all_flows(&self) -> u32 {
        // Two at most.
        self.flows.saturating_add(self.workloads_beside().len() as u32)
    }

    /// Returns the loads of the flows beside the requests.
    pub(super) fn loads_beside(&self) -> Vec<Load> {
        let of = |workload: &Workload| Load {
            socket_buffer_bytes: self.socket_buffer_bytes,
            dscp: self.dscp,
            ecn: self.ecn,
            warmup: self.warmup,
            duration: self.duration,
            client_cpus: self.client_cpus.clone(),
            server_cpus: self.server_cpus.clone(),
            setup_limit: self.setup_limit,
            ..Load::new(*workload)
        };
        self.workloads_beside().iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::Beside;

    #[test]
    fn bulk_flows_follow_those_of_the_requests() {
        let load = Load {
            flows: 3,
            message_bytes: 7,
            outstanding: 4,
            dscp: Some(46),
            ecn: true,
            beside: Some(Beside::Both),
            ..Load::new(Workload::UdpRr)
        };
        assert_eq!((load.all_flows(), Load { beside: None, ..load.clone() }.all_flows()), (5, 3));
        let beside = load.loads_beside();
        let workloads: Vec<Workload> = beside.iter().map(|load| load.workload).collect();
        assert_eq!(workloads, [Workload::TcpStream, Workload::TcpMaerts]);
        for bulk in beside {
            assert_eq!((bulk.flows, bulk.outstanding, bulk.dscp), (1, 1, Some(46)));
            assert!(bulk.ecn);
            assert_eq!(bulk.message_bytes, bulk.workload.default_message_bytes());
            assert_eq!(bulk.beside, None);
        }
    }
}
