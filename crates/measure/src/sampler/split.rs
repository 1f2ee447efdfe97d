//! Converts two readings of a CPU clock to seconds by kind.

use netstate::cpu::CpuTicks;

use super::exact::CpuNs;
use results::CpuSeconds;

/// Returns seconds by kind from ticks alone.
pub(super) fn from_ticks(ticks: &CpuTicks, user_hz: u64) -> CpuSeconds {
    let seconds = |ticks: u64| ticks as f64 / user_hz as f64;
    CpuSeconds {
        user: seconds(ticks.user) + seconds(ticks.nice),
        system: seconds(ticks.system),
        softirq: seconds(ticks.softirq),
        irq: seconds(ticks.irq),
        steal: seconds(ticks.steal),
        idle: seconds(ticks.idle) + seconds(ticks.iowait),
    }
}

/// Returns seconds by kind from the exact clock, completed by ticks:
///
/// - Task time is exact in total. User and system mode divide it in proportion to their ticks.
///   Without a tick of either, all of it is system time.
/// - The exact clock also counts while the hypervisor has the CPU. Only busy CPUs lose time to it,
///   so stolen time is subtracted from all kinds except idle, in proportion.
pub(super) fn from_exact(exact: &CpuNs, ticks: &CpuTicks, user_hz: u64) -> CpuSeconds {
    let sampled = from_ticks(ticks, user_hz);
    let seconds = |ns: u64| ns as f64 / 1e9;
    let busy = busy_ns(exact);
    let steal = sampled.steal.min(busy);
    let kept = kept(exact, &sampled);
    let task = seconds(exact.task()) * kept;
    let in_tasks = sampled.user + sampled.system;
    let user_share = if in_tasks > 0.0 { sampled.user / in_tasks } else { 0.0 };
    CpuSeconds {
        user: task * user_share,
        system: task * (1.0 - user_share),
        softirq: seconds(exact.softirq()) * kept,
        irq: seconds(exact.irq()) * kept,
        steal,
        idle: seconds(exact.idle()),
    }
}

/// Returns the time of everything but the idle task, seconds.
fn busy_ns(exact: &CpuNs) -> f64 {
    (exact.task() + exact.softirq() + exact.irq()) as f64 / 1e9
}

/// Returns the share of busy time that the hypervisor did not take, 0..1.
fn kept(exact: &CpuNs, sampled: &CpuSeconds) -> f64 {
    let busy = busy_ns(exact);
    if busy > 0.0 { (busy - sampled.steal.min(busy)) / busy } else { 1.0 }
}

/// CPU seconds by their cause, without stolen time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Caused {
    /// Caused by the measurement.
    pub own: f64,
    /// Unknown cause: packets that arrive by an interrupt, and kernel threads.
    pub open: f64,
}

/// Returns the time that the measurement caused, and the time of unknown cause.
pub(super) fn caused(exact: &CpuNs, ticks: &CpuTicks, user_hz: u64) -> Caused {
    let kept = kept(exact, &from_ticks(ticks, user_hz)) / 1e9;
    Caused { own: exact.own() as f64 * kept, open: exact.open() as f64 * kept }
}

/// Returns user, system, softirq and interrupt time.
pub(super) fn busy(cpu: &CpuSeconds) -> f64 {
    cpu.user + cpu.system + cpu.softirq + cpu.irq
}

/// Returns the sum over all kinds, idle included, seconds.
pub(super) fn total(cpu: &CpuSeconds) -> f64 {
    busy(cpu) + cpu.steal + cpu.idle
}

#[cfg(test)]
mod tests {
    use super::super::exact::Kind;
    use super::*;

    const TICKS: CpuTicks = CpuTicks {
        user: 20,
        nice: 10,
        system: 70,
        idle: 100,
        iowait: 20,
        irq: 1,
        softirq: 5,
        steal: 50,
        guest: 7,
        guest_nice: 0,
    };

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn ticks_are_user_hz() {
        let cpu = from_ticks(&TICKS, 100);
        assert!(close(cpu.user, 0.3) && close(cpu.system, 0.7) && close(cpu.idle, 1.2), "{cpu:?}");
        assert!(close(cpu.irq, 0.01) && close(cpu.softirq, 0.05) && close(cpu.steal, 0.5));
    }

    #[test]
    fn exact_time_is_shared_as_ticks_are_and_stolen_time_comes_off_work() {
        let second = 1_000_000_000;
        let exact = CpuNs::of(&[
            (Kind::Idle, second),
            (Kind::Task, second),
            (Kind::OwnTask, 3 * second),
            (Kind::Softirq, second),
            (Kind::NetOwn, 3 * second),
            (Kind::NetOpen, second),
            (Kind::Irq, second),
        ]);
        let cpu = from_exact(&exact, &TICKS, 100);
        // 0.5 s of 10 s of work are stolen.
        assert!(close(cpu.user, 0.3 * 3.8) && close(cpu.system, 0.7 * 3.8), "{cpu:?}");
        assert!(close(cpu.softirq, 4.75) && close(cpu.irq, 0.95) && close(cpu.idle, 1.0));
        assert!(close(total(&cpu), 11.0), "{cpu:?}");
        let caused = caused(&exact, &TICKS, 100);
        assert!(close(caused.own, 6.0 * 0.95) && close(caused.open, 0.95), "{caused:?}");
    }

    #[test]
    fn without_ticks_task_time_is_system_time_and_nothing_divides_by_zero() {
        let exact = CpuNs::of(&[(Kind::Task, 3_000_000)]);
        let cpu = from_exact(&exact, &CpuTicks::default(), 100);
        assert!(close(cpu.system, 0.003) && close(cpu.user, 0.0), "{cpu:?}");
        // More stolen than worked: the two clocks are read at different moments.
        let cpu = from_exact(&exact, &TICKS, 100);
        assert!(close(cpu.steal, 0.003) && close(busy(&cpu), 0.0), "{cpu:?}");
        assert_eq!(from_exact(&CpuNs::default(), &CpuTicks::default(), 100), CpuSeconds::default());
    }
}
