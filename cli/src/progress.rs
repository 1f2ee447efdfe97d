//! Progress on standard error: a bar with the time left on a terminal, nothing
//! elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measure::plan::PlannedCell;
use measure::subject::Subject;

/// A bar over the samples of a run.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// A bar that says what is being prepared.
    pub fn new(message: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg} {elapsed}"));
        bar.set_message(message.to_owned());
        Progress { bar, started: Instant::now() }
    }

    /// Says what is being prepared now.
    pub fn prepare(&self, message: impl Into<String>) {
        let message = message.into();
        tracing::debug!("{message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// From preparing to measuring.
    pub fn measure(&mut self, expected: Duration) {
        tracing::debug!("measuring, for about {}", clock(expected));
        self.started = Instant::now();
        self.bar.reset();
        self.bar.set_style(style("{bar:24} {percent:>3}% {prefix:>8} left  {msg}"));
        self.bar.set_prefix(clock(expected));
    }

    /// The maximum that a cell's load is taken of is about to be measured.
    pub fn calibrating(&mut self, subject: &Subject, cell: &PlannedCell) {
        self.prepare(format!(
            "{} {} {}: its maximum",
            subject.mode, subject.offload, cell.ask.task
        ));
        // Measuring begins after the last one.
        self.started = Instant::now();
    }

    /// A cell is about to be measured.
    pub fn sampling(&self, subject: &Subject, cell: &PlannedCell) {
        let message = format!("{} {} {}", subject.mode, subject.offload, cell.ask.task);
        tracing::debug!("sampling {message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// How many samples are done, of how many.
    pub fn sampled(&self, done: u64, total: u64) {
        let left = self.started.elapsed().mul_f64((total - done) as f64 / done.max(1) as f64);
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_prefix(clock(left));
    }

    /// Removes the bar.
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
