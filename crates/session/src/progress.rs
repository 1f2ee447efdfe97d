//! Progress on standard error: on a terminal, a bar with the remaining time, below first figures;
//! otherwise nothing.
//! The log at debug level has the same steps. `bench/busy` parses "setting", "sampling",
//! "resting".

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreign::plain;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use measure::path_under_test::PathUnderTest;
use measure::plan::PlannedCell;
use results::stats::Outlook;

/// Largest half-width to show (±100%). Wider intervals carry no information.
const WIDEST_SAID: f64 = 1.0;

/// Target of log lines. `bench/busy` and the host of a guest recognize it.
pub const LOG: &str = "overlane::progress";

/// A progress bar for the samples of a run.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    /// Text about the width of the intervals.
    width: String,
    /// Estimated duration of the work after the samples.
    after: Duration,
    /// Figures above the bar, each line with its end.
    figures: Arc<Mutex<String>>,
}

impl Progress {
    /// Creates a bar with a message about the preparation.
    pub fn new(message: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg} {elapsed}"));
        bar.set_message(plain(message).into_owned());
        Progress {
            bar,
            started: Instant::now(),
            width: String::new(),
            after: Duration::ZERO,
            figures: Arc::default(),
        }
    }

    /// Shows the current step of the preparation.
    pub fn prepare(&self, message: impl Into<String>) {
        let message = plain(&message.into()).into_owned();
        tracing::debug!(target: LOG, "{message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Shows the mode being built, the expected duration and the elapsed time, until
    /// [`built`](Progress::built).
    pub fn build(&self, what: &str, seconds: Option<u32>) {
        let Some(seconds) = seconds else { return self.prepare(format!("building {what}")) };
        self.prepare(format!("building {what} (about {seconds} s):"));
        self.bar.reset_elapsed();
        self.bar.enable_steady_tick(Duration::from_secs(1));
    }

    /// Stops the ticks of [`build`](Progress::build), which would disturb measurements.
    pub fn built(&self) {
        self.bar.disable_steady_tick();
    }

    /// Prints lines to standard error, above the bar. Escapes control characters.
    pub fn print(&self, lines: &[String]) {
        self.aside(|| {
            for line in lines {
                // Ignore errors: standard error may be closed.
                let _ = writeln!(std::io::stderr(), "{}", foreign::lines(line, false));
            }
        });
    }

    /// Prints something above the bar.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Adds the duration of the work after the samples to the remaining time.
    pub fn followed_by(&mut self, after: Duration) {
        self.after = after;
    }

    /// Switches from preparation to measurement.
    pub fn measure(&mut self, expected: Duration) {
        let expected = expected + self.after;
        tracing::debug!(target: LOG, "measuring, for about {}", clock(expected));
        self.started = Instant::now();
        self.bar.reset();
        let figures = Arc::clone(&self.figures);
        let put = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Writing to the bar's buffer cannot fail.
            let _ = out.write_str(&figures.lock().unwrap_or_else(PoisonError::into_inner));
        };
        let with_figures = style("{figures}{bar:24} {percent:>3}% {prefix:>8} left  {msg}");
        self.bar.set_style(with_figures.with_key("figures", put));
        self.bar.set_prefix(clock(expected));
    }

    /// Shows that the maximum rate of a cell is about to be measured.
    pub fn calibrating(&mut self, subject: &PathUnderTest, cell: &PlannedCell) {
        self.prepare(format!(
            "{} {} {}: finding its maximum",
            subject.mode, subject.offload, cell.ask.task
        ));
        // Restart the clock: the measurement begins after the last calibration.
        self.started = Instant::now();
    }

    /// Shows the cell that is about to be measured.
    pub fn sampling(&self, subject: &PathUnderTest, cell: &PlannedCell) {
        let message = format!("{} {} {}", subject.mode, subject.offload, cell.ask.task);
        tracing::debug!(target: LOG, "sampling {message}");
        let message = format!("{}{message}", self.width);
        self.bar.set_message(plain(&message).into_owned());
        self.bar.tick();
    }

    /// Logs that the next cell's setting is about to be applied.
    pub fn setting(&self) {
        tracing::debug!(target: LOG, "setting");
    }

    /// Shows the number of completed samples.
    pub fn sampled(&self, done: u64, total: u64) {
        let left = self.started.elapsed().mul_f64((total - done) as f64 / done.max(1) as f64);
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_prefix(clock(left + self.after));
    }

    /// Shows the width of the widest interval, and its expected development.
    pub fn outlook(&mut self, outlook: Option<Outlook>) {
        // After only a few blocks, the width means nothing yet.
        let outlook = outlook.filter(|outlook| outlook.widest <= WIDEST_SAID);
        let Some(Outlook { widest, at_end, needed }) = outlook else {
            return self.width.clear();
        };
        self.width = match needed {
            Some(needed) if needed < 10_000.0 => {
                format!("±{:.1}%, needs about {needed:.0} blocks: ", widest * 100.0)
            }
            // No goal, or no sign of a provable difference.
            _ => format!("±{:.1}%, at the end ±{:.1}%: ", widest * 100.0, at_end * 100.0),
        };
        tracing::debug!(target: LOG, "intervals {}", self.width.trim_end_matches(": "));
    }

    /// Whether a terminal shows the bar.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Shows lines above the bar in place of earlier ones.
    pub fn figures(&self, lines: &[String]) {
        let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = text;
        self.bar.tick();
    }

    /// Shows a pause without traffic.
    pub fn resting(&self, rest: Duration) {
        let message = format!("{}resting {:.1} s (--impact)", self.width, rest.as_secs_f64());
        tracing::debug!(target: LOG, "{message}");
        self.bar.set_message(message);
        self.bar.tick();
    }

    pub fn finish(&self) {
        tracing::debug!(target: LOG, "measured");
        self.bar.finish_and_clear();
    }
}

/// Parses a constant template. An invalid one would show in every run.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
