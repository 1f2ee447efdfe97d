//! What the interface shows: intervals and keys in, no terminal.

use std::collections::{BTreeSet, VecDeque};

use observe::Snapshot;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::{History, KEPT, Subject};
use super::rows::{Chosen, Row, Sort, rows};

/// Characters of a filter, at most.
const FILTER: usize = 60;

/// What a key asks of whoever runs the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Nothing but to draw.
    Nothing,
    /// The end.
    Quit,
    /// The end by Ctrl-C.
    Interrupt,
    /// Of a recording: so many intervals on, or back.
    Step(i32),
    /// Of a recording: stop, or go on.
    Pause,
    /// Of a recording: twice as fast.
    Faster,
    /// Of a recording: half as fast.
    Slower,
}

/// What fills the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// Ways and drops.
    List,
    /// One of them, with all that is known of it.
    Detail(Chosen),
    /// The other host.
    Peer,
    /// Keys and columns.
    Help,
}

/// Where a recording is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Position {
    /// The interval that is shown, from 1.
    pub at: usize,
    /// Intervals there are.
    pub of: usize,
    /// So many times as fast as it was recorded.
    pub speed: f64,
    /// It stands still.
    pub paused: bool,
    /// Why it cannot be read on.
    pub problem: Option<String>,
}

/// What the interface shows.
#[derive(Debug)]
pub struct State {
    /// The interval on the screen.
    pub shown: Option<Snapshot>,
    /// Intervals up to it.
    pub history: History,
    /// What came while it was frozen.
    waiting: VecDeque<Snapshot>,
    /// Whether it stays as it is.
    pub frozen: bool,
    /// Where a recording is; `None`: this is live.
    pub position: Option<Position>,
    /// Order of ways.
    pub sort: Sort,
    /// Text that ways and drops must have.
    pub filter: String,
    /// Whether keys are text of the filter.
    pub editing: bool,
    /// Ways whose hops are listed.
    open: BTreeSet<Subject>,
    /// What is listed.
    pub rows: Vec<Row>,
    /// Index of the row with the cursor.
    pub selected: usize,
    chosen: Option<Chosen>,
    /// What fills the screen.
    pub page: Page,
    /// First line of a page that is longer than the screen.
    pub top: usize,
    /// Lines of the list that fit on the screen, as last drawn.
    pub fits: usize,
}

impl State {
    /// Before the first interval; `position` where it is of a recording.
    pub fn new(position: Option<Position>) -> State {
        State {
            shown: None,
            history: History::default(),
            waiting: VecDeque::new(),
            frozen: false,
            position,
            sort: Sort::Packets,
            filter: String::new(),
            editing: false,
            open: BTreeSet::new(),
            rows: Vec::new(),
            selected: 0,
            chosen: None,
            page: Page::List,
            top: 0,
            fits: 1,
        }
    }

    /// The next interval.
    pub fn take(&mut self, snapshot: Snapshot) {
        if self.frozen {
            // What is older than the history would never be seen.
            if self.waiting.len() == KEPT {
                self.waiting.pop_front();
            }
            self.waiting.push_back(snapshot);
            return;
        }
        self.history.add(&snapshot);
        if self.shown.is_none() {
            self.open.extend(snapshot.ways.first().map(Subject::way));
        }
        self.shown = Some(snapshot);
        self.list();
    }

    /// Another interval than the next: the last of these, after the others.
    pub fn jump(&mut self, last: Vec<Snapshot>) {
        self.history = History::default();
        last.into_iter().for_each(|snapshot| self.take(snapshot));
    }

    /// Whether the way's hops are listed.
    pub fn is_open(&self, way: &Subject) -> bool {
        self.open.contains(way)
    }

    /// A key.
    pub fn key(&mut self, key: KeyEvent) -> Asked {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Asked::Interrupt,
                _ => Asked::Nothing,
            };
        }
        if self.editing {
            self.edit(key.code);
            return Asked::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Char('?') if self.page == Page::Help => self.turn_to(Page::List),
            KeyCode::Char('?') => self.turn_to(Page::Help),
            KeyCode::Char('p') if self.page == Page::Peer => self.turn_to(Page::List),
            KeyCode::Char('p') => self.turn_to(Page::Peer),
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Enter => self.look_into(),
            KeyCode::Up | KeyCode::Char('k') => self.up(1),
            KeyCode::Down | KeyCode::Char('j') => self.down(1),
            KeyCode::PageUp => self.up(self.fits.max(1)),
            KeyCode::PageDown => self.down(self.fits.max(1)),
            KeyCode::Home => self.up(usize::MAX),
            KeyCode::End => self.down(usize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.list();
            }
            KeyCode::Char('/') => {
                self.turn_to(Page::List);
                self.editing = true;
            }
            other if self.position.is_some() => return of_recording(other),
            KeyCode::Right => self.look_into(),
            KeyCode::Left => self.back(),
            KeyCode::Char('f' | ' ') => self.freeze(),
            _ => {}
        }
        Asked::Nothing
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.filter.chars().count() < FILTER => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => {
                self.editing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.list();
    }

    fn freeze(&mut self) {
        self.frozen = !self.frozen;
        if !self.frozen {
            std::mem::take(&mut self.waiting).into_iter().for_each(|snapshot| self.take(snapshot));
        }
    }

    fn turn_to(&mut self, page: Page) {
        (self.page, self.top) = (page, 0);
    }

    /// Opens a way, then shows all of it; of a hop and of drops, that at once.
    fn look_into(&mut self) {
        let (Page::List, Some(chosen)) = (&self.page, self.chosen.clone()) else { return };
        match chosen {
            Chosen::Way(way) if !self.open.contains(&way) => {
                self.open.insert(way);
                self.list();
            }
            chosen => self.turn_to(Page::Detail(chosen)),
        }
    }

    /// Leaves a page; in the list, goes from a hop to its way, and closes that.
    fn back(&mut self) {
        if self.page != Page::List {
            return self.turn_to(Page::List);
        }
        match self.chosen.clone() {
            Some(Chosen::Hop(way, _)) => self.chosen = Some(Chosen::Way(way)),
            Some(Chosen::Way(way)) => drop(self.open.remove(&way)),
            _ => {}
        }
        self.list();
    }

    fn up(&mut self, rows: usize) {
        match self.page {
            Page::List => self.choose(self.selected.saturating_sub(rows)),
            // Drawing knows how long the page is.
            _ => self.top = self.top.saturating_sub(rows),
        }
    }

    fn down(&mut self, rows: usize) {
        match self.page {
            Page::List => self.choose(self.selected.saturating_add(rows)),
            _ => self.top = self.top.saturating_add(rows),
        }
    }

    fn choose(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        let shown = self.shown.as_ref().zip(self.rows.get(self.selected));
        self.chosen = shown.and_then(|(snapshot, row)| Chosen::of(snapshot, *row));
    }

    /// Lists anew; the cursor stays with what it is on, or else where it is.
    fn list(&mut self) {
        let Some(snapshot) = &self.shown else { return };
        self.rows = rows(snapshot, self.sort, &self.filter, &self.open);
        let here = self.rows.get(self.selected).and_then(|row| Chosen::of(snapshot, *row));
        // Of two that cannot be told apart, the cursor stays with the one that it is on.
        let row = match &self.chosen {
            Some(chosen) if here.as_ref() != Some(chosen) => chosen
                .find(snapshot)
                .and_then(|found| self.rows.iter().position(|row| *row == found)),
            _ => None,
        };
        self.choose(row.unwrap_or(self.selected));
    }
}

/// Keys that only a recording has.
fn of_recording(key: KeyCode) -> Asked {
    match key {
        KeyCode::Char(' ' | 'f') => Asked::Pause,
        KeyCode::Left => Asked::Step(-1),
        KeyCode::Right => Asked::Step(1),
        KeyCode::Char('+' | '=') => Asked::Faster,
        KeyCode::Char('-') => Asked::Slower,
        _ => Asked::Nothing,
    }
}
