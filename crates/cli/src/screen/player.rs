//! Plays back a recording at an adjustable speed.

use std::time::{Duration, Instant};

use super::history::KEPT;
use super::state::{KeyAction, Position, State};
use crate::recording::Indexed;

/// Slowest and fastest speed.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.125..=1024.0;
/// Minimum and maximum display time of an interval.
const SHOWN_S: std::ops::RangeInclusive<f64> = 0.02..=3600.0;

/// A recording in playback.
#[derive(Debug)]
pub struct Player {
    recording: Indexed,
    position: Position,
    /// Time when the next interval is due.
    due: Option<Instant>,
    /// Error that ended the playback.
    error: Option<anyhow::Error>,
}

impl Player {
    pub fn new(recording: Indexed) -> Player {
        let position = Position { of: recording.len(), speed: 1.0, ..Position::default() };
        Player { recording, position, due: None, error: None }
    }

    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Shows the next interval if it is due. Returns whether anything changed.
    pub fn play(&mut self, now: Instant, state: &mut State) -> bool {
        let is_due = self.due.is_none_or(|due| due <= now);
        // Keys still work while paused, so the loop must not block here.
        if self.position.paused || !is_due {
            return false;
        }
        self.step(1, state);
        self.position.paused |= self.position.at >= self.position.of;
        let length = state.shown.as_ref().map_or(1.0, |shown| shown.seconds);
        // A recording may contain any interval length, so limit the time.
        let length = (length / self.position.speed).clamp(*SHOWN_S.start(), *SHOWN_S.end());
        self.due = Some(now + Duration::from_secs_f64(length));
        self.tell(state);
        true
    }

    /// Executes the action of a key.
    pub fn asked(&mut self, asked: KeyAction, state: &mut State) {
        let position = &mut self.position;
        match asked {
            KeyAction::Step(steps) => {
                position.paused = true;
                self.step(steps, state);
            }
            KeyAction::Pause if position.at >= position.of => {
                // At the end, Space restarts the playback.
                if position.problem.is_none() && position.of > 1 {
                    position.paused = false;
                    self.go_to(0, state);
                    self.due = Some(Instant::now() + Duration::from_secs(1));
                }
            }
            KeyAction::Pause => position.paused = !position.paused,
            KeyAction::Faster => position.speed = (position.speed * 2.0).min(*SPEEDS.end()),
            KeyAction::Slower => position.speed = (position.speed / 2.0).max(*SPEEDS.start()),
            KeyAction::Nothing | KeyAction::Quit | KeyAction::Interrupt => {}
        }
        if matches!(asked, KeyAction::Faster | KeyAction::Slower) {
            // Apply the new speed at once.
            self.due = None;
        }
        self.tell(state);
    }

    /// Returns the error that ended the playback.
    pub fn into_error(self) -> Option<anyhow::Error> {
        self.error
    }

    fn step(&mut self, steps: i32, state: &mut State) {
        let at = self.position.at as i64 - 1 + i64::from(steps);
        let last = self.position.of as i64 - 1;
        let at = at.clamp(0, last.max(0)) as usize;
        // Already at the first or last interval.
        if at + 1 == self.position.at {
            return;
        }
        self.go_to(at, state);
    }

    fn go_to(&mut self, at: usize, state: &mut State) {
        // The next interval extends the history. After a jump, rebuild the history.
        let is_next = at == self.position.at;
        let from = if is_next { at } else { (at + 1).saturating_sub(KEPT) };
        let read: anyhow::Result<Vec<_>> =
            (from..=at).filter_map(|number| self.recording.read(number).transpose()).collect();
        match read {
            Ok(read) => {
                match is_next {
                    true => read.into_iter().for_each(|snapshot| state.take(snapshot)),
                    false => state.jump(read),
                }
                self.position.at = (at + 1).min(self.position.of);
            }
            Err(error) => {
                self.position.problem = Some(format!("{error:#}"));
                // The intervals before the damage stay accessible.
                (self.position.of, self.position.paused) = (at, true);
                self.error = Some(error);
            }
        }
    }

    fn tell(&self, state: &mut State) {
        state.position = Some(self.position.clone());
    }
}
