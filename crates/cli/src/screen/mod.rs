//! The terminal interface of `overlane watch`.
//!
//! [`State`] holds the shown data and handles intervals and keys; `draw` draws it as a frame. Both
//! are independent of the terminal. [`run`] connects them to it. For live data it has its own
//! thread, so that keys work at once, however long an interval is.

mod columns;
mod detail;
mod draw;
mod help;
mod history;
pub mod line;
mod list;
mod look;
mod number;
mod peer;
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
use draw::draw;
use look::Look;
use player::Player;
use state::{KeyAction, State};
use terminal::Terminal;

/// Polling period for signals and new intervals.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub enum Source {
    /// A running observation. The interface ends with it.
    Live(Receiver<Snapshot>),
    Recording(Indexed),
}

/// Returns whether standard input and output are a terminal that the interface can use.
pub fn is_possible() -> bool {
    let has_size = || size().is_ok_and(|(columns, lines)| columns > 0 && lines > 0);
    // A terminal that cannot move its cursor gets text output.
    let moves = std::env::var("TERM").is_ok_and(|term| !matches!(term.as_str(), "" | "dumb"));
    let are_terminals = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    moves && are_terminals && has_size()
}

/// Shows intervals until a key or `stop` ends it.
///
/// # Errors
/// An unusable terminal; a damaged recording.
pub fn run(source: Source, stop: &AtomicBool) -> anyhow::Result<Exit> {
    let mut feed = match source {
        Source::Live(intervals) => Feed::Live(intervals),
        Source::Recording(recording) => Feed::Player(Box::new(Player::new(recording))),
    };
    let mut state = State::new(feed.player().map(|player| player.position().clone()));
    let mut terminal = Terminal::take()?;
    let exit = show(&mut terminal, &mut feed, &mut state, stop)?;
    // Restore the terminal before an error of the recording is printed.
    drop(terminal);
    match feed {
        Feed::Player(player) => player.into_error().map_or(Ok(exit), Err),
        Feed::Live(_) => Ok(exit),
    }
}

/// Source of the next interval.
enum Feed {
    Live(Receiver<Snapshot>),
    Player(Box<Player>),
}

impl Feed {
    fn player(&mut self) -> Option<&mut Player> {
        match self {
            Feed::Player(player) => Some(player),
            Feed::Live(_) => None,
        }
    }

    /// Takes the next interval if there is one. Returns whether it did, `None` at the end.
    fn next(&mut self, state: &mut State) -> Option<bool> {
        match self {
            Feed::Player(player) => Some(player.play(Instant::now(), state)),
            Feed::Live(intervals) => match intervals.try_recv() {
                Ok(snapshot) => {
                    state.take(snapshot);
                    Some(true)
                }
                Err(TryRecvError::Empty) => Some(false),
                // The watching thread has ended; its error is reported by the caller.
                Err(TryRecvError::Disconnected) => None,
            },
        }
    }
}

fn show(
    terminal: &mut Terminal,
    feed: &mut Feed,
    state: &mut State,
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    let look = Look { colour: colour_is_wanted(), unicode: is_utf8() };
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) {
        match feed.next(state) {
            Some(more) => changed |= more,
            // The observation has ended and reports its error itself.
            None => return Ok(Exit::Done),
        }
        if changed {
            terminal.draw(|frame| draw(frame, state, look))?;
        }
        changed = event::poll(LOOK).context("read the terminal")?;
        // Nothing to read: look for a new interval.
        if !changed {
            continue;
        }
        match event::read().context("read the terminal")? {
            // Some terminals also report key releases, which would count keys twice.
            Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                KeyAction::Quit => return Ok(Exit::Done),
                KeyAction::Interrupt => return Ok(Exit::Interrupted),
                asked => feed.player().into_iter().for_each(|player| player.asked(asked, state)),
            },
            // Redraw everything: terminals rearrange their content on a resize.
            Event::Resize(..) => terminal.forget()?,
            _ => {}
        }
    }
    Ok(Exit::Interrupted)
}

/// Returns whether the locale is UTF-8 (locale(7)).
fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
