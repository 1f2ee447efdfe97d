//! The terminal interface of `overlane watch`.
//!
//! [`State`] knows what is shown, and takes intervals and keys; `draw` makes a frame of it. Both
//! know no terminal. [`run`] joins them to one, in a thread of its own where packets are
//! followed: keys are answered at once, however long an interval is.

mod columns;
mod detail;
mod draw;
mod help;
mod history;
mod line;
mod list;
mod number;
mod player;
mod rows;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context;
use observe::Snapshot;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::size;

use crate::exit::Exit;
use crate::output::colour_is_wanted;
use crate::recording::Indexed;
use draw::{Look, draw};
use player::Player;
use state::{Asked, State};
use terminal::Terminal;

/// How often is looked for a signal and for the next interval.
const LOOK: Duration = Duration::from_millis(50);

/// Where intervals come from.
#[derive(Debug)]
pub enum Source {
    /// Whoever measures; the interface ends when that does.
    Live(Receiver<Snapshot>),
    /// A recording.
    Recording(Indexed),
}

/// Whether there is a terminal to show it on, and keys to be had from it.
pub fn is_possible() -> bool {
    let has_size = || size().is_ok_and(|(columns, lines)| columns > 0 && lines > 0);
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && has_size()
}

/// Shows intervals until a key or `stop` ends it.
///
/// # Errors
/// A terminal that cannot be used; a recording that is damaged.
pub fn run(source: Source, stop: &AtomicBool) -> anyhow::Result<Exit> {
    let (mut live, mut player) = match source {
        Source::Live(intervals) => (Some(intervals), None),
        Source::Recording(recording) => (None, Some(Player::new(recording))),
    };
    let mut state = State::new(player.as_ref().map(|player| player.position().clone()));
    let look = Look { colour: colour_is_wanted(), unicode: is_utf8() };
    let mut terminal = Terminal::take()?;
    let mut changed = true;
    let exit = loop {
        if stop.load(Ordering::Relaxed) {
            break Exit::Interrupted;
        }
        if let Some(player) = &mut player {
            changed |= player.play(Instant::now(), &mut state);
        }
        match live.as_mut().map(|intervals| intervals.try_recv()) {
            Some(Ok(snapshot)) => {
                state.take(snapshot);
                changed = true;
            }
            // Whoever measured has told why, or will.
            Some(Err(TryRecvError::Disconnected)) => break Exit::Done,
            Some(Err(TryRecvError::Empty)) | None => {}
        }
        if changed {
            terminal.draw(|frame| draw(frame, &mut state, look))?;
        }
        changed = false;
        if !event::poll(LOOK).context("read the terminal")? {
            continue;
        }
        changed = true;
        match event::read().context("read the terminal")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                Asked::Quit => break Exit::Done,
                Asked::Interrupt => break Exit::Interrupted,
                Asked::Nothing => {}
                asked => {
                    if let Some(player) = &mut player {
                        player.asked(asked, &mut state);
                    }
                }
            },
            // Terminals move what they show when their size changes.
            Event::Resize(..) => terminal.forget()?,
            _ => {}
        }
    };
    drop(terminal);
    match player.and_then(Player::into_error) {
        Some(error) => Err(error),
        None => Ok(exit),
    }
}

/// Whether the terminal is told to be one of UTF-8 (locale(7)).
fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
