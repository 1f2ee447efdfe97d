//! State of the interface. Handles intervals and keys, independent of the terminal.

use std::collections::{BTreeSet, VecDeque};

use observe::Snapshot;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::{History, KEPT, Subject};
use super::rows::{Chosen, Row, Sort, rows};

/// Maximum length of a filter, in characters.
const FILTER: usize = 60;

/// Action that a key requests from the main loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    Nothing,
    Quit,
    /// Quit by Ctrl-C.
    Interrupt,
    /// Recording: move by this number of intervals.
    Step(i32),
    /// Recording: pause or resume.
    Pause,
    /// Recording: double the speed.
    Faster,
    /// Recording: halve the speed.
    Slower,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// Routes and drops.
    List,
    Detail(Chosen),
    Peer,
    /// Keys and columns.
    Help,
}

/// Playback position of a recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Position {
    /// Number of the shown interval, from 1.
    pub at: usize,
    /// Number of intervals.
    pub of: usize,
    /// Speed relative to the recording.
    pub speed: f64,
    pub paused: bool,
    /// Error that ended the playback.
    pub problem: Option<String>,
}

#[derive(Debug)]
pub struct State {
    /// The interval on the screen.
    pub shown: Option<Snapshot>,
    /// Intervals up to the shown one.
    pub history: History,
    /// Intervals that arrived while frozen.
    waiting: VecDeque<Snapshot>,
    pub frozen: bool,
    /// Position in a recording. `None` for live data.
    pub position: Option<Position>,
    /// Order of routes.
    pub sort: Sort,
    /// Text that routes and drops must contain.
    pub filter: String,
    /// Keys edit the filter.
    pub editing: bool,
    /// Routes whose hops are listed.
    open: BTreeSet<Subject>,
    pub rows: Vec<Row>,
    /// Index of the row with the cursor.
    pub selected: usize,
    chosen: Option<Chosen>,
    pub page: Page,
    /// First visible line of a page.
    pub top: usize,
    /// Lines of the list that fit on the screen, from the last frame.
    pub fits: usize,
}

impl State {
    /// Creates the state before the first interval. `position` is set for a recording.
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

    /// Takes the next interval.
    pub fn take(&mut self, snapshot: Snapshot) {
        if self.frozen {
            // Drop intervals that would be older than the history.
            if self.waiting.len() == KEPT {
                self.waiting.pop_front();
            }
            self.waiting.push_back(snapshot);
            // The display is frozen: the interval waits, so that nothing moves under the cursor.
            return;
        }
        self.history.add(&snapshot);
        // Open the first route at the start, as an example of its hops.
        if self.shown.is_none() {
            self.open.extend(snapshot.paths.first().map(Subject::path));
        }
        self.shown = Some(snapshot);
        self.list();
    }

    /// Jumps to the last of these intervals; the others become the history.
    pub fn jump(&mut self, last: Vec<Snapshot>) {
        self.history = History::default();
        last.into_iter().for_each(|snapshot| self.take(snapshot));
    }

    /// Returns whether the hops of a route are listed.
    pub fn is_open(&self, path: &Subject) -> bool {
        self.open.contains(path)
    }

    pub fn key(&mut self, key: KeyEvent) -> KeyAction {
        // In raw mode, Ctrl-C arrives as a key, not as SIGINT.
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => KeyAction::Interrupt,
                _ => KeyAction::Nothing,
            };
        }
        // All keys edit the filter, including those with a function elsewhere.
        if self.editing {
            self.edit(key.code);
            return KeyAction::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
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
            // Must come before the keys of live data, which have the same codes.
            other if self.position.is_some() => return of_recording(other),
            KeyCode::Right => self.look_into(),
            KeyCode::Left => self.back(),
            KeyCode::Char('f' | ' ') => self.freeze(),
            _ => {}
        }
        KeyAction::Nothing
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
        // Process the intervals that arrived while frozen, so that the history has no gap.
        if !self.frozen {
            std::mem::take(&mut self.waiting).into_iter().for_each(|snapshot| self.take(snapshot));
        }
    }

    fn turn_to(&mut self, page: Page) {
        (self.page, self.top) = (page, 0);
    }

    /// Opens a closed route. Otherwise shows the details of the row.
    fn look_into(&mut self) {
        let (Page::List, Some(chosen)) = (&self.page, self.chosen.clone()) else { return };
        match chosen {
            Chosen::Path(path) if !self.open.contains(&path) => {
                self.open.insert(path);
                self.list();
            }
            chosen => self.turn_to(Page::Detail(chosen)),
        }
    }

    /// Leaves a page. In the list, moves from a hop to its route, and closes a route.
    fn back(&mut self) {
        if self.page != Page::List {
            return self.turn_to(Page::List);
        }
        match self.chosen.clone() {
            Some(Chosen::Hop(path, _)) => self.chosen = Some(Chosen::Path(path)),
            Some(Chosen::Path(path)) => drop(self.open.remove(&path)),
            _ => {}
        }
        self.list();
    }

    fn up(&mut self, rows: usize) {
        match self.page {
            Page::List => self.choose(self.selected.saturating_sub(rows)),
            // `draw` limits the value to the length of the page.
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

    /// Rebuilds the list. The cursor stays on its row, or at its position if the row is gone.
    fn list(&mut self) {
        let Some(snapshot) = &self.shown else { return };
        self.rows = rows(snapshot, self.sort, &self.filter, &self.open);
        let here = self.rows.get(self.selected).and_then(|row| Chosen::of(snapshot, *row));
        // If two rows have the same identity, the cursor stays on the current one.
        let row = match &self.chosen {
            Some(chosen) if here.as_ref() != Some(chosen) => chosen
                .find(snapshot)
                .and_then(|found| self.rows.iter().position(|row| *row == found)),
            _ => None,
        };
        self.choose(row.unwrap_or(self.selected));
    }
}

/// Handles keys that exist only for a recording.
fn of_recording(key: KeyCode) -> KeyAction {
    match key {
        KeyCode::Char(' ' | 'f') => KeyAction::Pause,
        KeyCode::Left => KeyAction::Step(-1),
        KeyCode::Right => KeyAction::Step(1),
        KeyCode::Char('+' | '=') => KeyAction::Faster,
        KeyCode::Char('-') => KeyAction::Slower,
        _ => KeyAction::Nothing,
    }
}
