//! Measures the cost of a trace point without the attached program: the kernel's call of it.
//!
//! The measurement only affects this process: peeking at a datagram of its own passes the trace
//! point `skb_copy_datagram_iovec`. Rounds with and without an empty program there alternate, and
//! the median of their differences is the cost of a call. Other processes that read datagrams
//! meanwhile pay the same for some milliseconds.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use nix::sys::socket::{MsgFlags, recv};

/// An odd number, so that there is a median.
const ROUNDS: usize = 9;
/// Peeks in each half of a round; they take about 0.3 ms.
const PEEKS: u32 = 1000;

/// Measures the cost of calling an empty program that `attach` attaches at
/// `skb_copy_datagram_iovec`, or at the function with this trace point. Zero or less if noise hides
/// it.
///
/// # Errors
/// If it cannot be attached, or a socket fails.
pub fn call_cost(
    mut attach: impl FnMut() -> Result<Link, libbpf_rs::Error>,
) -> io::Result<Duration> {
    let (from, to) = UnixDatagram::pair()?;
    from.send(&[0])?;
    let peeks = || -> io::Result<i128> {
        let begun = Instant::now();
        for _ in 0..PEEKS {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            recv(to.as_raw_fd(), &mut [0], flags)?;
        }
        Ok(begun.elapsed().as_nanos() as i128)
    };
    peeks()?;
    let mut differences = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let without = peeks()?;
        let link = attach().map_err(io::Error::other)?;
        let with = peeks()?;
        drop(link);
        differences.push(with - without);
    }
    Ok(each(differences))
}

fn each(mut differences: Vec<i128>) -> Duration {
    differences.sort_unstable();
    // The median ignores measurements that were disturbed by other work.
    let median = differences.get(differences.len() / 2).copied().unwrap_or(0);
    Duration::from_nanos(u64::try_from(median / i128::from(PEEKS)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_something_disturbed_says_nothing() {
        let calls = |ns: i128| ns * i128::from(PEEKS);
        let cost = each(vec![calls(35), calls(-900), calls(36), calls(34), calls(10_000)]);
        assert_eq!(cost, Duration::from_nanos(35));
        // Noise alone.
        assert_eq!(each(vec![calls(-3), calls(-2), calls(5)]), Duration::ZERO);
    }
}
