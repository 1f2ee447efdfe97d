//! Progress on standard error: a bar with the time left on a terminal, nothing
//! elsewhere.

use std::time::{Duration, Instant};

use foreign::plain;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measure::path_under_test::PathUnderTest;
use measure::plan::PlannedCell;
use results::stats::Outlook;

/// Half-width from which on an interval says nothing (±100%).
const WIDEST_SAID: f64 = 1.0;

/// A bar over the samples of a run.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    /// How wide the intervals are.
    width: String,
    /// About how long what comes after the samples takes.
    after: Duration,
}

impl Progress {
    /// A bar that says what is being prepared.
    pub fn new(message: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg} {elapsed}"));
        bar.set_message(plain(message).into_owned());
        Progress { bar, started: Instant::now(), width: String::new(), after: Duration::ZERO }
    }

    /// Says what is being prepared now.
    pub fn prepare(&self, message: impl Into<String>) {
        let message = plain(&message.into()).into_owned();
        tracing::debug!("{message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Says what is being built, which takes about so long, and lets the time be seen that
    /// it has taken so far, until [`built`](Progress::built).
    pub fn build(&self, what: &str, seconds: Option<u32>) {
        let Some(seconds) = seconds else { return self.prepare(format!("building {what}")) };
        self.prepare(format!("building {what}, which takes about {seconds} s:"));
        self.bar.reset_elapsed();
        self.bar.enable_steady_tick(Duration::from_secs(1));
    }

    /// Building has ended: what is measured next is not disturbed.
    pub fn built(&self) {
        self.bar.disable_steady_tick();
    }

    /// Prints something above the bar.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// From now on the time left has so much in it that comes after what is measured.
    pub fn followed_by(&mut self, after: Duration) {
        self.after = after;
    }

    /// From preparing to measuring.
    pub fn measure(&mut self, expected: Duration) {
        let expected = expected + self.after;
        tracing::debug!("measuring, for about {}", clock(expected));
        self.started = Instant::now();
        self.bar.reset();
        self.bar.set_style(style("{bar:24} {percent:>3}% {prefix:>8} left  {msg}"));
        self.bar.set_prefix(clock(expected));
    }

    /// The maximum that a cell's load is taken of is about to be measured.
    pub fn calibrating(&mut self, subject: &PathUnderTest, cell: &PlannedCell) {
        self.prepare(format!(
            "{} {} {}: its maximum",
            subject.mode, subject.offload, cell.ask.task
        ));
        // Measuring begins after the last one.
        self.started = Instant::now();
    }

    /// A cell is about to be measured.
    pub fn sampling(&self, subject: &PathUnderTest, cell: &PlannedCell) {
        let message = format!("{} {} {}", subject.mode, subject.offload, cell.ask.task);
        tracing::debug!("sampling {message}");
        let message = format!("{}{message}", self.width);
        self.bar.set_message(plain(&message).into_owned());
        self.bar.tick();
    }

    /// The next cell's setting is about to be put in effect.
    pub fn setting(&self) {
        tracing::debug!("setting");
    }

    /// How many samples are done, of how many.
    pub fn sampled(&self, done: u64, total: u64) {
        let left = self.started.elapsed().mul_f64((total - done) as f64 / done.max(1) as f64);
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_prefix(clock(left + self.after));
    }

    /// How wide the widest interval is, and where that is going.
    pub fn outlook(&mut self, outlook: Option<Outlook>) {
        // Two or three blocks say nothing yet.
        let outlook = outlook.filter(|outlook| outlook.widest <= WIDEST_SAID);
        let Some(Outlook { widest, at_end, needed }) = outlook else {
            return self.width.clear();
        };
        self.width = match needed {
            Some(needed) if needed < 10_000.0 => {
                format!("±{:.1}%, needs about {needed:.0} blocks: ", widest * 100.0)
            }
            // Without a goal, and where nothing points to a difference that could be proven.
            _ => format!("±{:.1}%, at the end ±{:.1}%: ", widest * 100.0, at_end * 100.0),
        };
        tracing::debug!("intervals {}", self.width.trim_end_matches(": "));
    }

    /// Nothing is sent for so long.
    pub fn resting(&self, rest: Duration) {
        let message = format!("{}resting {:.1} s (--impact)", self.width, rest.as_secs_f64());
        tracing::debug!("{message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    pub fn finish(&self) {
        tracing::debug!("measured");
        self.bar.finish_and_clear();
    }
}

/// A template known at compile time is either right always or never.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
