//! Tests of the state and its screens, with a recording.
//!
//! The recording is of `overlane lab up vxlan`, with a stream of 400 Mbit/s and UDP to a closed
//! port in it: `overlane watch --netns NETNS,… --count 4 --record FILE`.

use std::fmt::Write;
use std::path::Path;

use observe::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::draw::draw;
use super::history::KEPT;
use super::look::Look;
use super::player::Player;
use super::rows::{Row, Sort};
use super::state::{KeyAction, Page, Position, State};
use crate::recording::Indexed;

const PLAIN: Look = Look { colour: false, unicode: true };

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn recorded() -> Vec<Snapshot> {
    let text = std::fs::read_to_string(data("watch.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn live() -> State {
    let mut state = State::new(None);
    recorded().into_iter().for_each(|snapshot| state.take(snapshot));
    state
}

fn press(state: &mut State, code: KeyCode) -> KeyAction {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn say(state: &mut State, text: &str) {
    for character in text.chars() {
        press(state, KeyCode::Char(character));
    }
}

fn terminal(state: &mut State, columns: u16, lines: u16, look: Look) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, state, look)).unwrap();
    terminal
}

/// Returns the screen as text, without trailing spaces.
fn screen(state: &mut State, columns: u16, lines: u16, look: Look) -> String {
    let terminal = terminal(state, columns, lines, look);
    let cells: Vec<&str> =
        terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(columns.into()).map(|line| line.concat().trim_end().to_owned() + "\n");
    lines.collect()
}

#[track_caller]
fn shows(state: &mut State, text: &str) {
    let screen = screen(state, 80, 24, PLAIN);
    assert!(screen.contains(text), "{text:?} is not on the screen:\n{screen}");
}

#[track_caller]
fn select(state: &mut State, wanted: Row) {
    press(state, KeyCode::Home);
    for _ in 0..100 {
        if state.rows[state.selected] == wanted {
            return;
        }
        press(state, KeyCode::Down);
    }
    panic!("no row {wanted:?}");
}

/// Compares pages at three sizes with the golden file. `OVERLANE_SAVE_SCREENS=1` rewrites it.
#[test]
fn pages_look_as_on_record() {
    type Prepare = fn(&mut State);
    let pages: [(&str, Prepare); 6] = [
        ("list", |_| {}),
        ("hop", |state| {
            select(state, Row::Hop(0, 3));
            press(state, KeyCode::Enter);
        }),
        ("path", |state| {
            press(state, KeyCode::Enter);
        }),
        ("drops", |state| {
            press(state, KeyCode::End);
            press(state, KeyCode::Enter);
        }),
        ("help", |state| say(state, "?")),
        ("filter", |state| say(state, "/udp")),
    ];
    let mut got = String::new();
    for (name, prepare) in pages {
        for (columns, lines) in [(80, 24), (40, 10), (200, 50)] {
            let mut state = live();
            prepare(&mut state);
            let screen = screen(&mut state, columns, lines, PLAIN);
            writeln!(got, "== {name}, {columns} columns, {lines} lines\n{screen}").unwrap();
        }
    }
    let path = data("screens.txt");
    if std::env::var_os("OVERLANE_SAVE_SCREENS").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let on_record = std::fs::read_to_string(&path).unwrap();
    for (number, (got, on_record)) in got.lines().zip(on_record.lines()).enumerate() {
        assert_eq!(got, on_record, "line {} of screens.txt", number + 1);
    }
    assert_eq!(got.lines().count(), on_record.lines().count());
}

#[test]
fn no_size_is_too_small() {
    let mut states = [State::new(None), live(), State::new(Some(Position::default()))];
    for state in &mut states {
        for page in ["", "?", "?\n", "\u{1b}/udp\n"] {
            for key in page.chars() {
                press(state, if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) });
            }
            for (columns, lines) in (0..30).map(|n| (n * 3, n)).chain([(1, 50), (500, 1)]) {
                // The test backend needs a non-zero size.
                screen(state, columns.max(1), lines.max(1), PLAIN);
            }
        }
    }
}

#[test]
fn without_colour_and_without_unicode_nothing_of_either_is_drawn() {
    let mut state = live();
    for page in ["", "?"] {
        say(&mut state, page);
        let drawn = terminal(&mut state, 200, 50, PLAIN);
        let cells = &drawn.backend().buffer().content;
        assert!(cells.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
        let ascii = screen(&mut state, 200, 50, Look { colour: true, unicode: false });
        assert!(ascii.is_ascii() && ascii.contains("us p50"), "{ascii}");
    }
    let drawn = terminal(&mut state, 80, 24, Look { colour: true, unicode: true });
    assert!(drawn.backend().buffer().content.iter().any(|cell| cell.fg != Color::Reset));
}

#[test]
fn names_of_others_cannot_drive_the_terminal() {
    let mut snapshot = recorded().remove(0);
    let harm = "\x1b[2Jx\u{202e}\n";
    let path = &mut snapshot.paths[0];
    path.ending = format!("read by {harm}");
    (path.hops[0].namespace, path.hops[0].device) = (harm.into(), Some(harm.into()));
    let dropped = &mut snapshot.drops[0];
    (dropped.namespace, dropped.reason) = (harm.into(), harm.into());
    dropped.meaning = Some(harm.into());
    snapshot.not_seen.push(harm.into());
    let mut state = State::new(None);
    state.take(snapshot);
    for wanted in [Row::Path(0), Row::Hop(0, 0), Row::Drop(0)] {
        select(&mut state, wanted);
        for key in [KeyCode::F(1), KeyCode::Enter, KeyCode::Char('?')] {
            press(&mut state, key);
            let screen = screen(&mut state, 200, 50, PLAIN);
            assert!(screen.contains("\\x1b[2J") && !screen.contains(['\x1b', '\u{202e}']));
        }
        press(&mut state, KeyCode::Esc);
    }
}

/// Returns an interval with a peer whose names contain control characters.
fn with_peer() -> Snapshot {
    let mut snapshot = recorded().remove(0);
    let example = snapshot.paths.iter().find_map(|path| path.example.clone()).unwrap();
    let flow = observe::FlowSeen {
        flow: example,
        encapsulation: Some(observe::Encapsulation::Vxlan),
        vni: Some(42),
        direction: observe::Direction::Out,
        left: 1500,
        left_bytes: 1,
        came: 1463,
        came_bytes: 1,
        lost: Some(37),
        in_flight: 0,
        left_by: vec!["a nic0".to_owned()],
        came_by: vec!["b\x1b[2J nic0".to_owned()],
        there: vec!["b nic0 rx".to_owned(), "b\u{202e} vxlan0 rx".to_owned()],
    };
    let clock = observe::ClockSeen { ahead_ns: 1_200_000, error_ns: 40_000, round_trip_ns: 79_000 };
    snapshot.peer = Some(observe::PeerSeen {
        address: "192.0.2.2:5212".to_owned(),
        problem: None,
        clock: Some(clock),
        compared_s: 12.0,
        age_s: 0.1,
        flows: vec![flow],
        other_flows: 0,
        uncounted: 0,
    });
    snapshot
}

#[test]
fn cpus_have_a_line_where_there_is_room_and_a_queue_its_note() {
    let mut snapshot = recorded().remove(0);
    let cpu = |cpu, softirq, backlog| observe::CpuSeen {
        cpu,
        softirq,
        backlog: Some(backlog),
        dropped: 4,
        squeezed: 1,
    };
    snapshot.cpus = vec![cpu(3, 71.2, 900), cpu(0, 12.0, 0), cpu(1, 1.0, 0)];
    snapshot.paths[0].hops[0].queued = Some(640);
    let mut state = State::new(None);
    state.take(snapshot);
    let line = "softirq CPU 3 71%, CPU 0 12%; backlog 900, 12 dropped there, 3 times squeezed";
    let shown = screen(&mut state, 80, 24, PLAIN);
    assert_eq!(shown.lines().nth(2), Some(line), "{shown}");
    assert!(!screen(&mut state, 80, 10, PLAIN).contains("softirq"));
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    let shown = screen(&mut state, 80, 24, PLAIN);
    assert!(shown.contains("packets in the queue   640"), "{shown}");
}

#[test]
fn another_host_has_a_line_and_a_page() {
    let mut state = State::new(None);
    state.take(with_peer());
    shows(&mut state, "peer 192.0.2.2:5212: 37 lost between the hosts, 1 flows, clock +1.200 ms");
    say(&mut state, "p");
    assert_eq!(state.page, Page::Peer);
    shows(
        &mut state,
        "1500 left here, 1463 arrived there: 37 lost between the hosts (2.47%), 0 in",
    );
    shows(&mut state, "there: b nic0 rx > b\\u{202e} vxlan0 rx");
    for (columns, lines) in (1..40).map(|n| (n * 2, n)) {
        let screen = screen(&mut state, columns, lines, PLAIN);
        assert!(!screen.contains(['\x1b', '\u{202e}']), "{screen}");
    }
    say(&mut state, "p");
    assert_eq!(state.page, Page::List);
    let mut away = with_peer();
    away.peer.as_mut().unwrap().problem = Some("no answer within 5s".to_owned());
    state.take(away);
    shows(&mut state, "peer 192.0.2.2:5212: does not answer: no answer within 5s");
    say(&mut state, "p");
    shows(&mut state, "does not answer: no answer within 5s");
    // Without --peer there is no line, and the page says so.
    let mut state = live();
    assert!(!screen(&mut state, 80, 24, PLAIN).contains("peer"));
    say(&mut state, "p");
    shows(&mut state, "no peer (see --peer)");
}

#[test]
fn keys_move_open_and_close() {
    let mut state = live();
    assert_eq!(state.rows[..2], [Row::Path(0), Row::Hop(0, 0)]);
    press(&mut state, KeyCode::Left);
    assert_eq!(state.rows[..2], [Row::Path(0), Row::Path(1)]);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Right);
    assert_eq!(state.rows[1..3], [Row::Path(1), Row::Hop(1, 0)]);
    assert_eq!(state.page, Page::List);
    press(&mut state, KeyCode::Right);
    assert!(matches!(state.page, Page::Detail(_)));
    shows(&mut state, "Hops, µs");
    press(&mut state, KeyCode::Left);
    for _ in 0..3 {
        press(&mut state, KeyCode::Char('j'));
    }
    assert_eq!(state.selected, 4);
    press(&mut state, KeyCode::Esc);
    assert_eq!((state.selected, state.page.clone()), (1, Page::List));
    press(&mut state, KeyCode::End);
    assert!(matches!(state.rows[state.selected], Row::Drop(_)));
    press(&mut state, KeyCode::PageDown);
    press(&mut state, KeyCode::Home);
    assert_eq!(state.selected, 0);
    assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.key(interrupt), KeyAction::Interrupt);
}

#[test]
fn ways_are_sorted_by_packets_by_p99_and_by_drops() {
    let mut state = live();
    // An interval with a route that ends in a drop.
    state.jump(recorded().into_iter().take(3).collect());
    let mut first = |sort| {
        assert_eq!(state.sort, sort);
        let Some(Row::Path(first)) = state.rows.first().copied() else { panic!() };
        let path = state.shown.as_ref().unwrap().paths[first].clone();
        say(&mut state, "s");
        path
    };
    let paths = &recorded()[2].paths;
    assert_eq!(first(Sort::Packets).packets, paths.iter().map(|path| path.packets).max().unwrap());
    assert_eq!(
        first(Sort::P99).took.p99_ns,
        paths.iter().map(|path| path.took.p99_ns).max().unwrap()
    );
    assert!(first(Sort::Drops).ending.starts_with("dropped"));
    assert_eq!(state.sort, Sort::Packets);
}

#[test]
fn a_filter_is_text_of_flows_namespaces_and_devices() {
    let mut state = live();
    let all = state.rows.len();
    say(&mut state, "/no such thing?q");
    assert!(state.rows.is_empty() && state.page == Page::List);
    shows(&mut state, "no route matches the filter");
    shows(&mut state, "filter: no such thing?q_");
    press(&mut state, KeyCode::Esc);
    assert_eq!((state.rows.len(), state.filter.as_str()), (all, ""));
    say(&mut state, "/VXLAN0x");
    press(&mut state, KeyCode::Backspace);
    press(&mut state, KeyCode::Enter);
    assert!(!state.editing && state.rows.contains(&Row::Path(0)));
    assert!(!state.rows.iter().any(|row| matches!(row, Row::Drop(_))));
}

#[test]
fn a_frozen_screen_stays_and_catches_up() {
    let mut snapshots = recorded().into_iter();
    let mut state = State::new(None);
    state.take(snapshots.next().unwrap());
    let before = screen(&mut state, 80, 24, PLAIN);
    say(&mut state, "f");
    let rest: Vec<_> = snapshots.collect();
    for _ in 0..2 * KEPT {
        rest.iter().cloned().for_each(|snapshot| state.take(snapshot));
    }
    let frozen = screen(&mut state, 80, 24, PLAIN);
    assert_eq!(frozen.replace("frozen", "live"), before);
    say(&mut state, " ");
    assert_eq!(state.shown.as_ref(), rest.last());
    let path = super::history::Subject::path(&rest[0].paths[0]);
    assert_eq!(state.history.series(&path, |point| Some(point.packets_per_s)).len(), KEPT);
}

#[test]
fn the_cursor_stays_with_its_way() {
    let mut snapshots = recorded().into_iter();
    let mut state = State::new(None);
    state.take(snapshots.next().unwrap());
    select(&mut state, Row::Path(1));
    let mut turned = snapshots.next().unwrap();
    turned.paths.swap(0, 1);
    let (first, second) = (turned.paths[0].packets, turned.paths[1].packets);
    (turned.paths[0].packets, turned.paths[1].packets) = (first.max(second), first.min(second));
    state.take(turned);
    assert_eq!(state.rows[state.selected], Row::Path(0));
    // The row is gone: the cursor stays in place, and the page says so.
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Enter);
    assert!(matches!(state.page, Page::Detail(_)));
    let mut without = snapshots.next().unwrap();
    without.paths.clear();
    state.take(without);
    shows(&mut state, "not seen in this interval");
    press(&mut state, KeyCode::Esc);
    shows(&mut state, "no sampled packet ended in this interval");
}

#[test]
fn the_cursor_stays_on_the_second_of_two_ways_of_the_same_names() {
    let mut snapshot = recorded().remove(0);
    snapshot.paths.truncate(1);
    snapshot.paths.push(snapshot.paths[0].clone());
    let mut state = State::new(None);
    state.take(snapshot.clone());
    press(&mut state, KeyCode::Left);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.rows[state.selected], Row::Path(1));
    state.take(snapshot);
    assert_eq!(state.rows[state.selected], Row::Path(1));
}

#[test]
fn numbers_beyond_all_measure_are_drawn() {
    let mut snapshot = recorded().remove(0);
    (snapshot.time_s, snapshot.seconds, snapshot.own_cpu) = (f64::MAX, -f64::MAX, f64::MAX);
    (snapshot.events, snapshot.followed) = (u64::MAX, u64::MAX);
    snapshot.drops.push(snapshot.drops[0].clone());
    snapshot.drops.iter_mut().for_each(|drop| drop.packets = u64::MAX);
    for hop in &mut snapshot.paths[0].hops {
        (hop.bytes, hop.gso_packets, hop.cut) = (f64::MAX, f64::MAX, -f64::MAX);
        hop.since_before.p99_ns = u64::MAX;
        let counted = hop.counted.iter_mut();
        counted.for_each(|rates| rates.bytes_per_s = f64::MAX);
    }
    let mut state = State::new(None);
    for _ in 0..3 {
        state.take(snapshot.clone());
        for row in [Row::Path(0), Row::Hop(0, 3), Row::Drop(0)] {
            select(&mut state, row);
            screen(&mut state, 80, 24, PLAIN);
            press(&mut state, KeyCode::Enter);
            screen(&mut state, 80, 24, PLAIN);
            press(&mut state, KeyCode::Esc);
        }
        say(&mut state, "s");
    }
}

#[test]
fn a_recording_is_played_stepped_and_paused() {
    let mut player = Player::new(Indexed::open(&data("watch.jsonl")).unwrap());
    let mut state = State::new(Some(player.position().clone()));
    let recorded = recorded();
    let mut now = std::time::Instant::now();
    assert!(player.play(now, &mut state));
    assert!(!player.play(now, &mut state));
    assert_eq!(state.shown.as_ref(), recorded.first());
    now += std::time::Duration::from_secs_f64(recorded[0].seconds);
    assert!(player.play(now, &mut state));
    assert_eq!(state.shown.as_ref(), recorded.get(1));
    let ask = |key: KeyCode, player: &mut Player, state: &mut State| {
        let asked = press(state, key);
        player.asked(asked, state);
        let position = state.position.clone().unwrap();
        (position.at, position.paused)
    };
    assert_eq!(ask(KeyCode::Left, &mut player, &mut state), (1, true));
    assert_eq!(ask(KeyCode::Left, &mut player, &mut state), (1, true));
    assert_eq!(state.shown.as_ref(), recorded.first());
    for at in [2, 3, 4, 4] {
        assert_eq!(ask(KeyCode::Right, &mut player, &mut state), (at, true));
        assert_eq!(state.shown.as_ref(), recorded.get(at - 1));
    }
    shows(&mut state, "4 of 4 x1 end");
    assert_eq!(ask(KeyCode::Char('+'), &mut player, &mut state), (4, true));
    shows(&mut state, "4 of 4 x2 end");
    // Playback starts again from the beginning.
    assert_eq!(ask(KeyCode::Char(' '), &mut player, &mut state), (1, false));
    assert!(player.into_error().is_none());
}

#[test]
fn a_damaged_recording_shows_what_is_before_the_damage() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = std::fs::read_to_string(data("watch.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let damaged = [lines[0], lines[1], "{\"format\": 1}", lines[3]].join("\n");
    std::io::Write::write_all(&mut file, damaged.as_bytes()).unwrap();
    let mut player = Player::new(Indexed::open(file.path()).unwrap());
    let mut state = State::new(Some(player.position().clone()));
    let mut now = std::time::Instant::now();
    while player.play(now, &mut state) {
        now += std::time::Duration::from_secs(2);
    }
    shows(&mut state, "line 3: missing field");
    shows(&mut state, "2 of 2 x1 end");
    assert_eq!(state.shown.as_ref(), recorded().get(1));
    assert!(format!("{:#}", player.into_error().unwrap()).contains("line 3"));
}
