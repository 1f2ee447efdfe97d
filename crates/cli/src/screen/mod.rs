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
    // One that cannot move its cursor is for text.
    let moves = std::env::var("TERM").is_ok_and(|term| !matches!(term.as_str(), "" | "dumb"));
    let are_terminals = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    moves && are_terminals && has_size()
}

/// Shows intervals until a key or `stop` ends it.
///
/// # Errors
/// A terminal that cannot be used; a recording that is damaged.
pub fn run(source: Source, stop: &AtomicBool) -> anyhow::Result<Exit> {
    let mut feed = match source {
        Source::Live(intervals) => Feed::Live(intervals),
        Source::Recording(recording) => Feed::Player(Box::new(Player::new(recording))),
    };
    let mut state = State::new(feed.player().map(|player| player.position().clone()));
    let mut terminal = Terminal::take()?;
    let exit = show(&mut terminal, &mut feed, &mut state, stop)?;
    drop(terminal);
    match feed {
        Feed::Player(player) => player.into_error().map_or(Ok(exit), Err),
        Feed::Live(_) => Ok(exit),
    }
}

/// Where the next interval is from.
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

    /// Takes the next interval where there is one; says so. `None`: there will be no more.
    fn next(&mut self, state: &mut State) -> Option<bool> {
        match self {
            Feed::Player(player) => Some(player.play(Instant::now(), state)),
            Feed::Live(intervals) => match intervals.try_recv() {
                Ok(snapshot) => {
                    state.take(snapshot);
                    Some(true)
                }
                Err(TryRecvError::Empty) => Some(false),
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
            // Whoever measured tells why.
            None => return Ok(Exit::Done),
        }
        if changed {
            terminal.draw(|frame| draw(frame, state, look))?;
        }
        changed = event::poll(LOOK).context("read the terminal")?;
        if !changed {
            continue;
        }
        match event::read().context("read the terminal")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                Asked::Quit => return Ok(Exit::Done),
                Asked::Interrupt => return Ok(Exit::Interrupted),
                asked => feed.player().into_iter().for_each(|player| player.asked(asked, state)),
            },
            // Terminals move what they show when their size changes.
            Event::Resize(..) => terminal.forget()?,
            _ => {}
        }
    }
    Ok(Exit::Interrupted)
}

/// Whether the terminal is told to be one of UTF-8 (locale(7)).
fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
