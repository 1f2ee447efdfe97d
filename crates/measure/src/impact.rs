//! Do no harm: bounds on the test's own load, on a machine that carries others' traffic.
//!
//! A test sends in short pulses and rests between them. How long it rests follows from
//! what the last pulse really took of CPUs and link: over pulse and rest together the test
//! stays below its share of each. Where the host's own traffic suffers during pulses, the
//! share is halved, and comes back slowly.
//!
//! The share of CPUs falls with the square of what others leave: the part of the rests in which
//! CPUs are idle. Once because it is a share of that; and once because others catch up with what
//! a pulse has delayed in the idle time only. It falls to a sixty-fourth at most.
//!
//! Within a pulse, requests one at a time rest, too, after each answer: a CPU that is taken
//! for as long as a pulse lasts shows in the 99th percentile of whatever else runs, however
//! long the rest after it is. Their figure is the latency, which a rest leaves as it is. Other
//! loads have no such rests, and take a CPU for as long as a pulse lasts.
//!
//! The threads that read counters are a burst of work, and give way to all other programs.
//! Those that send and answer do not: their latency would be that of the scheduler.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use load::MOST_REST;
use netstate::cpu::{CpuStat, CpuTicks, PROC_STAT};
use netstate::proc::{ProcFile, read_value};
use netstate::snmp::{PROC_SNMP, Snmp};
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};
use results::stats::median;

/// Bound on the load that a test may put on a host and its link, on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impact {
    /// Most that the test takes of all CPUs, and of the link, on average, 0..1.
    pub share: f64,
}

impl Impact {
    /// What a pulse measures, unless asked otherwise.
    pub const PULSE: Duration = Duration::from_millis(250);
    /// What it discards before.
    pub const WARMUP: Duration = Duration::from_millis(20);
    /// What a pulse measures of loads without a rest between two requests: it takes a CPU.
    pub const BURST: Duration = Duration::from_millis(50);
    /// What such a pulse discards before.
    pub const BURST_WARMUP: Duration = Duration::from_millis(10);
}

/// Least part of the share that is left where the host suffers, or its CPUs are never idle.
const LEAST: f64 = 1.0 / 64.0;
/// Ticks of all CPUs that tell how idle they are.
const ENOUGH_TICKS: u64 = 20;
/// Pulses without harm until the share is doubled again.
const RECOVERY: u32 = 5;
/// Longest rest: a pulse that took more than that allows is the last for so long.
const LONGEST: Duration = Duration::from_secs(60);
/// Requests that a pulse has room for, at least: its figure is their median.
const REQUESTS: u32 = 40;
/// Rest between two requests before the first pulse has shown what one takes.
const FIRST: Duration = Duration::from_millis(1);
/// Pulses of which medians are taken: of what a request takes, and of the CPU time that the
/// machine had beyond that of its rests. One pulse in which others were busier moves neither.
const REMEMBERED: usize = 9;
/// Most CPU time of softirqs that is the test's, for each second of its own.
const SOFTIRQS: f64 = 2.0;
/// Bytes of the smallest frame on the wire, preamble and gap included, by which packets
/// are a share of a link.
const SMALLEST_FRAME: f64 = 84.0;

/// What one pulse took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Pulse {
    /// From its beginning to its end, set-up included.
    pub seconds: f64,
    /// CPU time of the test, softirqs included.
    pub cpu_s: f64,
    /// CPU time of the test in the rest before: settings are changed there.
    pub before_s: f64,
    /// Sent and received on the client's device.
    pub bits: f64,
    pub packets: f64,
    /// Answered.
    pub transactions: f64,
}

/// What there is to take a share of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Capacity {
    pub cpus: f64,
    /// Bits/s of the slowest link known; `None` where no device tells.
    pub link: Option<f64>,
}

/// Computes the rest after each pulse, so that the average stays below the bound.
#[derive(Debug)]
pub(crate) struct Governor {
    share: f64,
    capacity: Capacity,
    /// Part of the share that is used now.
    part: f64,
    /// Most rest between two requests.
    longest: Duration,
    /// CPU seconds of a request, set-up of its pulse included, of the last pulses.
    costs: VecDeque<f64>,
    /// CPU time of the whole machine in the last rests.
    rests: VecDeque<CpuTicks>,
    /// Pulses since the last harm.
    unharmed: u32,
    backed_off: u32,
    /// All pulses and rests so far.
    total: Pulse,
    rested: f64,
}

impl Governor {
    /// Of pulses that measure for `duration`.
    pub fn new(impact: Impact, capacity: Capacity, duration: Duration) -> Governor {
        Governor {
            share: impact.share,
            capacity,
            part: 1.0,
            longest: (duration / REQUESTS).min(MOST_REST),
            costs: VecDeque::with_capacity(REMEMBERED),
            rests: VecDeque::with_capacity(REMEMBERED),
            unharmed: 0,
            backed_off: 0,
            total: Pulse::default(),
            rested: 0.0,
        }
    }

    /// How long to rest after a pulse; `harmed` where the host suffered during it.
    pub fn rest(&mut self, pulse: Pulse, harmed: bool) -> Duration {
        if harmed {
            self.part = (self.part / 2.0).max(LEAST);
            self.unharmed = 0;
            self.backed_off += 1;
        } else {
            self.unharmed += 1;
            if self.unharmed.is_multiple_of(RECOVERY) {
                self.part = (self.part * 2.0).min(1.0);
            }
        }
        if pulse.transactions > 0.0 {
            remember(&mut self.costs, pulse.cpu_s / pulse.transactions);
        }
        let share = self.share * self.part;
        let cpu_s = pulse.cpu_s + pulse.before_s;
        let of_cpus = cpu_s / self.allowed();
        // Where no device tells its speed, CPU time alone bounds the test.
        let of_link = self.capacity.link.map_or(0.0, |link| {
            let bits = pulse.bits.max(pulse.packets * SMALLEST_FRAME * 8.0);
            bits / (link * share)
        });
        let whole = of_cpus.max(of_link);
        let rest = (whole - pulse.seconds).clamp(0.0, LONGEST.as_secs_f64());
        self.total.seconds += pulse.seconds;
        self.total.cpu_s += cpu_s;
        self.total.bits += pulse.bits;
        self.total.packets += pulse.packets;
        self.rested += rest;
        Duration::from_secs_f64(rest)
    }

    /// Takes note of the machine's CPU time in a rest.
    pub fn rested(&mut self, ticks: CpuTicks) {
        remember(&mut self.rests, ticks);
    }

    /// Part of the CPUs' time that others leave, 0..1; `None` where it is not known.
    fn known_idle(&self) -> Option<f64> {
        let sum = |of: fn(&CpuTicks) -> u64| self.rests.iter().map(of).sum::<u64>();
        let total = sum(CpuTicks::total);
        let idle = sum(|ticks| ticks.idle + ticks.iowait) as f64 / total as f64;
        (total >= ENOUGH_TICKS).then_some(idle.clamp(0.0, 1.0))
    }

    /// The same; 1 where it is not known.
    fn idle(&self) -> f64 {
        self.known_idle().unwrap_or(1.0)
    }

    /// Most that the test may take of all CPUs now, 0..1.
    fn cpu_bound(&self) -> f64 {
        self.share * (self.part * self.idle().powi(2)).max(LEAST)
    }

    /// CPU seconds a second that the test may take now.
    fn allowed(&self) -> f64 {
        self.capacity.cpus * self.cpu_bound()
    }

    /// Rest between an answer and the next request, with which a pulse stays below the share
    /// by itself: the answer's own time is not counted, and makes it less.
    pub fn between(&self) -> Duration {
        let Some(cost) = median_of(&self.costs) else {
            return FIRST.min(self.longest);
        };
        let seconds = cost / self.allowed();
        Duration::try_from_secs_f64(seconds).unwrap_or(self.longest).min(self.longest)
    }

    /// Share of all CPUs taken so far, pulses and rests together.
    pub fn cpu_share(&self) -> f64 {
        let seconds = self.total.seconds + self.rested;
        if seconds > 0.0 { self.total.cpu_s / (seconds * self.capacity.cpus) } else { 0.0 }
    }

    /// What was kept to, for the results.
    pub fn said(&self) -> Option<String> {
        let seconds = self.total.seconds + self.rested;
        if seconds <= 0.0 {
            return None;
        }
        let link = self.capacity.link.map_or(String::new(), |link| {
            format!(" and {:.2}% of the link", self.total.bits / (seconds * link) * 100.0)
        });
        let backed_off = match self.backed_off {
            0 => String::new(),
            times => format!("; it backed off {times} times, as the host's own traffic suffered"),
        };
        Some(format!(
            "the test took {:.2}% of all CPUs{link} on average (--impact {:.3}%: at last {:.3}% of \
             CPU time, of which others left {:.0}%){backed_off}",
            self.cpu_share() * 100.0,
            self.share * 100.0,
            self.cpu_bound() * 100.0,
            self.idle() * 100.0
        ))
    }
}

/// Adds one to the last [`REMEMBERED`].
fn remember<T>(last: &mut VecDeque<T>, one: T) {
    if last.len() == REMEMBERED {
        last.pop_front();
    }
    last.push_back(one);
}

fn median_of(last: &VecDeque<f64>) -> Option<f64> {
    median(&Vec::from_iter(last.iter().copied()))
}

/// How the host's own traffic fares: counters that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Fare {
    /// Packets dropped at full backlogs.
    pub drops: f64,
    /// TCP segments retransmitted in this process's namespace.
    pub retransmits: f64,
    /// Share of the last ten seconds in which some task waited for a CPU, 0..1 (PSI).
    pub waiting: f64,
    /// CPU time of the whole machine; `None`: it cannot be read.
    pub ticks: Option<CpuTicks>,
}

/// Retransmits a second more than in rests that are nobody's harm.
const RETRANSMITS: f64 = 20.0;
/// Rise of the waiting share that is harm.
const WAITING: f64 = 0.10;

/// Whether the host suffered from a pulse, by its counters at the pulse's `begin` and
/// `end`, `seconds` apart. `resting` are the rates of the rest before it, `waiting` is the
/// share before the run.
pub(crate) fn suffers(
    begin: &Fare,
    end: &Fare,
    resting: &Rates,
    waiting: f64,
    seconds: f64,
) -> bool {
    let rates = Rates::between(begin, end, seconds);
    rates.drops > resting.drops * 2.0 && end.drops > begin.drops
        || rates.retransmits > resting.retransmits * 2.0 + RETRANSMITS
        || end.waiting > waiting + WAITING
}

/// What the host suffers, per second: packets dropped, TCP segments sent again.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    pub drops: f64,
    pub retransmits: f64,
}

impl Rates {
    pub fn between(begin: &Fare, end: &Fare, seconds: f64) -> Rates {
        let seconds = seconds.max(1e-3);
        Rates {
            drops: (end.drops - begin.drops).max(0.0) / seconds,
            retransmits: (end.retransmits - begin.retransmits).max(0.0) / seconds,
        }
    }
}

/// Reads [`Fare`]; a source that this kernel lacks reads as nothing.
#[derive(Debug)]
pub(crate) struct Host {
    softnet: Option<ProcFile>,
    snmp: Option<ProcFile>,
    stat: Option<ProcFile>,
}

/// Where the kernel says how long tasks waited for a CPU.
const PRESSURE: &str = "/proc/pressure/cpu";

impl Host {
    pub fn open() -> Host {
        let open = |path: &str| ProcFile::open(path).ok();
        Host { softnet: open(PROC_SOFTNET_STAT), snmp: open(PROC_SNMP), stat: open(PROC_STAT) }
    }

    pub fn fare(&self) -> Fare {
        let softnet = self.softnet.as_ref().and_then(|file| SoftnetStat::read(file).ok());
        let drops =
            softnet.map_or(0.0, |stat| stat.cpus.values().map(|cpu| f64::from(cpu.dropped)).sum());
        let snmp = self.snmp.as_ref().and_then(|file| Snmp::parse(&file.read().ok()?).ok());
        let retransmits = snmp.map_or(0.0, |snmp| snmp.tcp.retrans_segs as f64);
        let waiting = read_value(PRESSURE).ok().and_then(|text| waiting(&text)).unwrap_or(0.0);
        let stat = self.stat.as_ref().and_then(|file| CpuStat::read(file).ok());
        Fare { drops, retransmits, waiting, ticks: stat.map(|stat| stat.total) }
    }
}

/// `avg10` of the line `some`, 0..1.
fn waiting(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    percent.parse::<f64>().ok().map(|percent| percent / 100.0)
}

/// Pulses and rests of a run.
#[derive(Debug)]
pub(crate) struct Pacing {
    governor: Governor,
    host: Host,
    /// What waited before the run.
    waiting: f64,
    /// When the last rest began, and the counters then.
    rest: (Instant, Fare),
    /// Own CPU time then.
    cpu: Duration,
    /// CPU seconds that the whole machine had in the last pulses more than in rests.
    machine: VecDeque<f64>,
    /// When the next pulse may begin.
    due: Option<Instant>,
}

/// What the counters say that a pulse took, warm-up included.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Took {
    /// CPU time of softirqs and interrupts, seconds.
    pub kernel_s: f64,
    /// CPU time of the whole machine less what it spends otherwise, seconds; negative where
    /// others had less. `None` where nothing was measured.
    pub machine_s: Option<f64>,
    /// Over the client's device, both ways.
    pub bits: f64,
    pub packets: f64,
    /// Answered.
    pub transactions: f64,
}

/// A pulse that has begun.
pub(crate) struct Begun {
    at: Instant,
    fare: Fare,
    resting: Rates,
    cpu: Duration,
    /// CPU time of the rest before.
    before: Duration,
}

impl Pacing {
    /// Of pulses that measure for `duration`.
    pub fn new(impact: Impact, capacity: Capacity, duration: Duration) -> Pacing {
        let host = Host::open();
        // What comes before the first pulse is a rest, too.
        let fare = host.fare();
        let governor = Governor::new(impact, capacity, duration);
        let (rest, cpu) = ((Instant::now(), fare), own_cpu());
        let machine = VecDeque::with_capacity(REMEMBERED);
        Pacing { governor, host, waiting: fare.waiting, rest, cpu, machine, due: None }
    }

    /// Rest between an answer and the next request, in the next pulse.
    pub fn between(&self) -> Duration {
        self.governor.between()
    }

    /// Part of the CPUs' time that others have, 0..1, by the last rests.
    pub fn others(&self) -> Option<f64> {
        self.governor.known_idle().map(|idle| 1.0 - idle)
    }

    /// How long there is to rest still.
    pub fn left(&self) -> Duration {
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        due.unwrap_or_default()
    }

    /// Reads the host's counters before a pulse.
    pub fn begin(&mut self) -> Begun {
        let (at, fare) = (Instant::now(), self.host.fare());
        let (since, then) = &self.rest;
        let resting = Rates::between(then, &fare, at.duration_since(*since).as_secs_f64());
        if let (Some(now), Some(then)) = (fare.ticks, then.ticks) {
            self.governor.rested(now.since(&then));
        }
        let cpu = own_cpu();
        Begun { at, fare, resting, cpu, before: cpu.saturating_sub(self.cpu) }
    }

    /// Reads the counters after a pulse, and sets the time of the next one.
    pub fn end(&mut self, begun: &Begun, took: &Took) {
        let (now, fare) = (Instant::now(), self.host.fare());
        let seconds = now.duration_since(begun.at).as_secs_f64();
        self.cpu = own_cpu();
        let own = self.cpu.saturating_sub(begun.cpu).as_secs_f64();
        // Softirqs are the whole machine's, and others' traffic is among them.
        let own = own + took.kernel_s.min(own * SOFTIRQS);
        // The machine's time has what other processes of the test took: a server, a
        // tunnel in user space.
        took.machine_s.into_iter().for_each(|seconds| remember(&mut self.machine, seconds));
        let cpu_s = own.max(median_of(&self.machine).unwrap_or(0.0));
        let Took { bits, packets, transactions, .. } = *took;
        let harmed = suffers(&begun.fare, &fare, &begun.resting, self.waiting, seconds);
        let before_s = begun.before.as_secs_f64();
        let pulse = Pulse { seconds, cpu_s, before_s, bits, packets, transactions };
        let rest = self.governor.rest(pulse, harmed);
        (self.rest, self.due) = ((now, fare), Some(now + rest));
    }

    /// What was kept to.
    pub fn said(&self) -> Option<String> {
        self.governor.said()
    }
}

/// Speed of a device of this process's namespace, bits/s; `None` where it does not say, or
/// is another's.
pub(crate) fn link_speed(device: &str) -> Option<f64> {
    let text = read_value(format!("/sys/class/net/{device}/speed")).ok()?;
    let megabits = text.trim().parse::<f64>().ok()?;
    // -1 where the driver knows none (`SPEED_UNKNOWN` of ethtool.h).
    (megabits > 0.0).then_some(megabits * 1e6)
}

/// CPU time of this process, all threads, and of the programs that it has waited for: settings
/// are changed by some.
fn own_cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::time::{ClockId, clock_gettime};
    let own =
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    let micros = |time: nix::sys::time::TimeVal| {
        use nix::sys::time::TimeValLike;
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    };
    let programs = getrusage(UsageWho::RUSAGE_CHILDREN);
    own + programs
        .map_or(Duration::ZERO, |used| micros(used.user_time()) + micros(used.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity { cpus: 4.0, link: Some(1e9) };

    fn governor(share: f64) -> Governor {
        Governor::new(Impact { share }, CAPACITY, Impact::PULSE)
    }

    #[test]
    fn cpu_packets_and_bits_stay_below_their_share_over_any_pulses() {
        for share in [0.01, 0.05, 0.2] {
            let mut governor = governor(share);
            let (mut seconds, mut cpu_s, mut bits, mut packets) = (0.0, 0.0, 0.0, 0.0);
            for at in 0..200_u32 {
                let kind = f64::from(at % 7) + 1.0;
                let pulse = Pulse {
                    seconds: 0.02 * kind,
                    cpu_s: 0.03 * kind,
                    before_s: 0.01 * f64::from(at % 2),
                    bits: 4e6 * f64::from(at % 5),
                    packets: 3000.0 * f64::from(at % 3),
                    transactions: 100.0,
                };
                let rest = governor.rest(pulse, at % 11 == 0).as_secs_f64();
                seconds += pulse.seconds + rest;
                cpu_s += pulse.cpu_s + pulse.before_s;
                bits += pulse.bits;
                packets += pulse.packets;
            }
            assert!(cpu_s / (seconds * CAPACITY.cpus) <= share * 1.0001, "{share}");
            assert!(bits / (seconds * 1e9) <= share * 1.0001, "{share}");
            assert!(packets * 84.0 * 8.0 / (seconds * 1e9) <= share * 1.0001, "{share}");
            assert!((governor.cpu_share() - cpu_s / (seconds * CAPACITY.cpus)).abs() < 1e-9);
        }
    }

    #[test]
    fn requests_rest_so_that_a_pulse_stays_below_the_share_by_itself() {
        for (share, cost) in [(0.05, 80e-6), (0.01, 80e-6), (0.5, 20e-6)] {
            let mut governor = governor(share);
            assert_eq!(governor.between(), FIRST);
            for at in 0..20 {
                // Now and then the machine is busier, which is not our doing.
                let others = if at % 4 == 0 { 0.2 } else { 0.0 };
                let each = governor.between().as_secs_f64() + 100e-6;
                let transactions = Impact::PULSE.as_secs_f64() / each;
                let cpu_s = cost * transactions + others;
                let pulse = Pulse { seconds: 0.25, cpu_s, transactions, ..Pulse::default() };
                governor.rest(pulse, false);
            }
            let each = governor.between().as_secs_f64() + 100e-6;
            let taken = cost / each / CAPACITY.cpus;
            // Or as many as a median wants, with a rest after the pulse.
            let most = governor.between() == Impact::PULSE / REQUESTS;
            assert!(taken <= share || most, "{share}: {taken} every {each} s");
            assert!(taken >= share * 0.5 || share > 0.3, "{share}: {taken} every {each} s");
        }
    }

    /// Waiting for I/O is idle, too.
    fn ticks(idle: u64, total: u64) -> CpuTicks {
        let iowait = idle / 2;
        CpuTicks { idle: idle - iowait, iowait, user: total - idle, ..CpuTicks::default() }
    }

    #[test]
    fn the_share_of_cpus_falls_with_the_square_of_what_others_leave() {
        let pulse = Pulse { seconds: 0.1, cpu_s: 0.1, transactions: 10.0, ..Pulse::default() };
        let rest_at = |idle, total| {
            let mut governor = governor(0.05);
            governor.rested(ticks(idle, total));
            let rest = governor.rest(pulse, false).as_secs_f64();
            (rest + pulse.seconds, governor.said().unwrap())
        };
        let (at_rest, said) = rest_at(400, 400);
        assert!(
            said.contains("5.000%: at last 5.000% of CPU time, of which others left 100%)"),
            "{said}"
        );
        let (half, said) = rest_at(200, 400);
        assert!((half / at_rest - 4.0).abs() < 1e-9, "{half} {at_rest}");
        assert!(
            said.contains("5.000%: at last 1.250% of CPU time, of which others left 50%)"),
            "{said}"
        );
        // Never idle; and too short a rest to tell.
        let (never, said) = rest_at(0, 400);
        assert!((never / at_rest - 64.0).abs() < 1e-9);
        assert!(
            said.contains("5.000%: at last 0.078% of CPU time, of which others left 0%)"),
            "{said}"
        );
        assert!((rest_at(0, ENOUGH_TICKS - 1).0 / at_rest - 1.0).abs() < 1e-9);
        // The last rests only.
        let mut governor = governor(0.05);
        governor.rested(ticks(0, 1000));
        (0..REMEMBERED).for_each(|_| governor.rested(ticks(30, 40)));
        assert!((governor.idle() - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_host_that_suffers_is_asked_less_often_within_a_pulse_too() {
        let mut governor = governor(0.05);
        let pulse = Pulse { seconds: 0.25, cpu_s: 0.05, transactions: 500.0, ..Pulse::default() };
        governor.rest(pulse, false);
        let usual = governor.between();
        governor.rest(pulse, true);
        assert_eq!(governor.between(), usual * 2);
        // Nothing answered: nothing learned, and nothing forgotten.
        governor.rest(Pulse { seconds: 0.25, cpu_s: 0.05, ..Pulse::default() }, true);
        assert_eq!(governor.between(), usual * 4);
    }

    #[test]
    fn harm_halves_the_share_and_it_comes_back_slowly() {
        let mut governor = governor(0.05);
        let pulse = Pulse { seconds: 0.05, cpu_s: 0.05, ..Pulse::default() };
        let usual = governor.rest(pulse, false);
        let harmed = governor.rest(pulse, true);
        assert!(harmed > usual * 2, "{harmed:?} after {usual:?}");
        let longest = (0..20).map(|_| governor.rest(pulse, true)).max().unwrap();
        assert!(longest <= LONGEST && longest < usual * 80, "{longest:?}");
        let rests: Vec<Duration> = (0..30).map(|_| governor.rest(pulse, false)).collect();
        assert!(rests[3] == longest && rests[29] == usual, "{rests:?}");
        assert!(governor.said().unwrap().contains("backed off 21 times"), "{:?}", governor.said());
    }

    /// One in nine in which others are busier, or less busy, is none.
    #[test]
    fn what_is_remembered_is_the_middle_of_the_last() {
        let mut last = VecDeque::new();
        assert_eq!(median_of(&last), None);
        for (one, middle) in [(8.0, 8.0), (2.0, 5.0), (4.0, 4.0), (-6.0, 3.0)] {
            remember(&mut last, one);
            assert_eq!(median_of(&last), Some(middle));
        }
        (0..REMEMBERED).for_each(|at| remember(&mut last, at as f64));
        assert_eq!((last.len(), median_of(&last)), (REMEMBERED, Some(4.0)));
    }

    #[test]
    fn a_pulse_of_nothing_needs_no_rest() {
        let pulse = Pulse { seconds: 0.05, ..Pulse::default() };
        assert_eq!(governor(0.05).rest(pulse, false), Duration::ZERO);
    }

    #[test]
    fn drops_retransmits_and_waiting_are_harm_and_what_was_there_before_is_not() {
        let calm = Fare { drops: 10.0, retransmits: 5.0, waiting: 0.2, ticks: None };
        let resting = Rates { drops: 0.0, retransmits: 1.0 };
        let harm = |end: Fare| suffers(&calm, &end, &resting, 0.2, 0.1);
        assert!(!harm(calm));
        assert!(harm(Fare { drops: 11.0, ..calm }));
        assert!(!harm(Fare { retransmits: 6.0, ..calm }));
        assert!(harm(Fare { retransmits: 9.0, ..calm }));
        assert!(harm(Fare { waiting: 0.35, ..calm }));
        // A host that drops all the time.
        let dropping = Rates { drops: 100.0, retransmits: 0.0 };
        let same = Fare { drops: 20.0, ..calm };
        assert!(!suffers(&calm, &same, &dropping, 0.2, 0.1));
    }

    #[test]
    fn the_pressure_file_is_read() {
        let text = "some avg10=4.91 avg60=3.30 avg300=9.14 total=6496919413\nfull avg10=0.00\n";
        assert!((waiting(text).unwrap() - 0.0491).abs() < 1e-9);
        assert_eq!(waiting(""), None);
        let fare = Host::open().fare();
        assert!((0.0..=1.0).contains(&fare.waiting), "{fare:?}");
    }
}
