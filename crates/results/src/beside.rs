//! Bulk traffic beside timed requests.

use serde::{Deserialize, Serialize};

use crate::names::{Beside, Direction};
use crate::workload::Workload;

impl Beside {
    /// The workloads that run beside the requests, one connection each.
    pub fn workloads(self) -> &'static [Workload] {
        match self {
            Beside::TcpStream => &[Workload::TcpStream],
            Beside::TcpMaerts => &[Workload::TcpMaerts],
            Beside::Both => &[Workload::TcpStream, Workload::TcpMaerts],
        }
    }
}

/// Rates of the bulk traffic beside timed requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BesideRates {
    /// Payload from client to server at the server, bits/s; null if there was no such traffic.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub forward_bits_per_s: Option<f64>,
    /// Payload from server to client at the client, bits/s; null if there was no such traffic.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub reverse_bits_per_s: Option<f64>,
}

impl BesideRates {
    /// Returns the rates of workloads; `None` without any.
    pub fn of(rates: impl IntoIterator<Item = (Workload, f64)>) -> Option<BesideRates> {
        let mut all = None;
        for (workload, bits_per_s) in rates {
            let rates: &mut BesideRates = all.get_or_insert_default();
            match workload.direction() {
                Direction::Forward => rates.forward_bits_per_s = Some(bits_per_s),
                Direction::Reverse => rates.reverse_bits_per_s = Some(bits_per_s),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_its_rate() {
        assert_eq!(BesideRates::of([]), None);
        let both = Beside::Both.workloads().iter().copied().zip([3.0, 4.0]);
        let rates = BesideRates::of(both).unwrap();
        assert_eq!((rates.forward_bits_per_s, rates.reverse_bits_per_s), (Some(3.0), Some(4.0)));
        let one = BesideRates::of([(Beside::TcpMaerts.workloads()[0], 5.0)]).unwrap();
        assert_eq!((one.forward_bits_per_s, one.reverse_bits_per_s), (None, Some(5.0)));
    }
}
