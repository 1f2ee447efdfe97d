//! Draws the state as a frame of the terminal.

use observe::{Snapshot, clock};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::columns::Columns;
use super::line::wrap;
use super::list::{column_names, flow, list_row};
use super::look::{Look, faint};
use super::number::short;
use super::rows::Row;
use super::state::{Page, State};
use super::{detail, help, peer};

/// Minimum number of lines for additional parts besides the list.
const ROOMY: u16 = 14;

/// Draws the state. Cuts off content that does not fit on the screen.
pub fn draw(frame: &mut Frame<'_>, state: &mut State, look: Look) {
    let area = frame.area();
    match state.page.clone() {
        Page::List => draw_list(frame, state, look),
        Page::Detail(chosen) => {
            let lines = detail::lines(state, &chosen, area.width.into(), look);
            draw_page(frame, state, lines, look);
        }
        Page::Peer => {
            let lines = peer::lines(state, area.width.into(), look);
            draw_page(frame, state, lines, look);
        }
        Page::Help => {
            let lines = help::lines(state, area.width.into(), look);
            draw_page(frame, state, lines, look);
        }
    }
    // Replace characters after drawing, so that all pages work on an ASCII terminal.
    if !look.unicode {
        for cell in &mut frame.buffer_mut().content {
            if let Some(ascii) = ascii(cell.symbol()) {
                cell.set_symbol(ascii);
            }
        }
    }
}

/// Returns the replacement of a character on an ASCII terminal.
fn ascii(symbol: &str) -> Option<&'static str> {
    const HEIGHTS: [&str; 8] = ["_", ".", ":", "-", "=", "+", "*", "#"];
    let first = symbol.chars().next().filter(|first| !first.is_ascii())?;
    Some(match first {
        '▁'..='█' => HEIGHTS[(first as usize - '▁' as usize).min(7)],
        'µ' => "u",
        '…' | '±' => "~",
        _ => "?",
    })
}

/// Draws a page of text from line `state.top` on, and the keys below it.
fn draw_page(frame: &mut Frame<'_>, state: &mut State, lines: Vec<Line<'_>>, look: Look) {
    let mut area = frame.area();
    let keys = bottom(&mut area, 1);
    // Scrolling keys may have moved beyond the end, because only drawing knows the length.
    state.top = state.top.min(lines.len().saturating_sub(area.height.into()));
    // PageUp and PageDown move by this number of lines.
    state.fits = area.height.into();
    let below = lines.len() - state.top > usize::from(area.height);
    let top = state.top;
    frame.render_widget(Paragraph::new(lines.into_iter().skip(top).collect::<Vec<_>>()), area);
    let more = if below { "Down more  " } else { "" };
    let line = format!("{more}Esc back  {}", keys_of_page(state));
    frame.render_widget(Paragraph::new(key_line(state, &line, look)), keys);
}

fn keys_of_page(state: &State) -> &'static str {
    if state.position.is_some() { "Left Right step  ? q quit" } else { "? help  q quit" }
}

fn top(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    let taken = Rect { height: lines, ..*area };
    (area.y, area.height) = (area.y + lines, area.height - lines);
    taken
}

fn bottom(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    area.height -= lines;
    Rect { y: area.y + area.height, height: lines, ..*area }
}

/// Areas of the list page, from top to bottom.
struct Parts {
    head: Rect,
    names: Rect,
    paths: Rect,
    drops: Rect,
    peer: Rect,
    about: Rect,
    keys: Rect,
}

impl Parts {
    /// Computes the areas that fit. The smallest screen shows only routes.
    fn of(mut area: Rect, dropped: usize, has_peer: bool, has_cpus: bool) -> Parts {
        let is_roomy = area.height >= ROOMY;
        // Below 4 lines, only the list itself is useful.
        let lines = if area.height < 4 { 0 } else { 1 + u16::from(is_roomy) };
        let head = top(&mut area, lines + u16::from(is_roomy && has_cpus));
        let names = top(&mut area, lines.min(1));
        let keys = bottom(&mut area, lines.min(1));
        let lines = if is_roomy { 2 } else { u16::from(area.height > 4) };
        let about = bottom(&mut area, lines);
        let lines = u16::from(has_peer && area.height > 3);
        let peer = bottom(&mut area, lines);
        let lines = match (u16::try_from(dropped).unwrap_or(u16::MAX), area.height) {
            (0, _) => u16::from(is_roomy),
            // Routes have priority over drops.
            (_, height) if height < 4 => 0,
            // Drops get at most a quarter of the remaining lines, and at least one.
            (some, height) => 1 + some.min((height / 4).max(1)),
        };
        let drops = bottom(&mut area, lines);
        Parts { head, names, paths: area, drops, peer, about, keys }
    }
}

fn draw_list(frame: &mut Frame<'_>, state: &mut State, look: Look) {
    let columns = Columns::of(frame.area().width.into());
    let is_drop = |row: &Row| matches!(row, Row::Drop(_));
    let all = state.rows.len();
    let paths = state.rows.iter().position(is_drop).unwrap_or(all);
    let other = state.shown.as_ref().and_then(|snapshot| snapshot.peer.as_ref());
    let softirqs = state.shown.as_ref().and_then(Snapshot::softirqs);
    let parts = Parts::of(frame.area(), all - paths, other.is_some(), softirqs.is_some());
    state.fits = parts.paths.height.into();
    render(frame, parts.head, head_lines(state, parts.head, look));
    render(frame, parts.names, vec![Line::styled(column_names(&columns), faint())]);
    // Before the first interval there is nothing to list.
    let Some(snapshot) = &state.shown else {
        render(frame, parts.paths, vec![Line::raw(nothing_yet(state))]);
        return render(frame, parts.keys, vec![key_line(state, "? help  q quit", look)]);
    };
    let row = |index: usize| list_row(state, snapshot, index, &columns, look);
    let shown = part(0..paths, state.selected, parts.paths.height);
    match paths {
        0 => render(frame, parts.paths, vec![Line::raw(no_paths(state, snapshot))]),
        _ => render(frame, parts.paths, shown.map(row).collect()),
    }
    let mut lines = vec![drops_title(state, snapshot, look)];
    let shown = part(paths..all, state.selected, parts.drops.height.saturating_sub(1));
    lines.extend(shown.map(row));
    render(frame, parts.drops, lines);
    let title = other.map(|other| peer::title(other, parts.peer.width.into(), look));
    render(frame, parts.peer, title.into_iter().collect());
    render(frame, parts.about, about_lines(state, snapshot, parts.about.width.into(), look));
    render(frame, parts.keys, vec![key_line(state, &keys_of_list(state), look)]);
}

fn render(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the part of `rows` that fits, centred on the selected row if it is among them.
fn part(rows: std::ops::Range<usize>, selected: usize, height: u16) -> std::ops::Range<usize> {
    let height = usize::from(height);
    let most = rows.end.saturating_sub(height).max(rows.start);
    // A selected row outside of the range shows the nearest end of it.
    let from = selected.min(rows.end).saturating_sub(height / 2).clamp(rows.start, most);
    from..(from + height).min(rows.end)
}

fn nothing_yet(state: &State) -> &'static str {
    match state.position {
        Some(_) => "the recording is empty",
        None => "measuring the first interval",
    }
}

fn no_paths(state: &State, snapshot: &Snapshot) -> &'static str {
    match snapshot.paths.is_empty() {
        true => "no sampled packet ended in this interval",
        false if state.filter.is_empty() => "",
        false => "no route matches the filter",
    }
}

fn head_lines(state: &State, area: Rect, look: Look) -> Vec<Line<'static>> {
    let Some(seen) = &state.shown else {
        return vec![Line::styled("overlane watch", look.title())];
    };
    let time = clock(seen.time_s);
    let cpu = format!("{:.1}% of {:.1}%", seen.own_cpu, seen.budget);
    let lost_style = if seen.events_lost > 0 { look.bad() } else { Style::new() };
    // The two full lines need 70 columns.
    if area.height < 2 || area.width < 70 {
        let line = format!("{time} 1 in {} ", seen.sample);
        let lost = Span::styled(format!("lost {}", short(seen.events_lost as f64)), lost_style);
        return vec![Line::from(vec![Span::raw(line), lost, Span::raw(format!(" CPU {cpu}"))])];
    }
    let mut first = format!("  {time} UTC  {:.1} s  sorted by {}", seen.seconds, state.sort.name());
    // The snapshot has a limited number of routes; report the remaining packets.
    if seen.other_paths > 0 {
        first += &format!("  {} packets on hidden routes", seen.other_paths);
    }
    if !seen.not_seen.is_empty() {
        first += "  incomplete, see ?";
    }
    let second = format!(
        "observed {}, 1 in {} sampled: {}, events {}, ",
        observe::share(seen.looked),
        seen.sample,
        seen.followed,
        seen.events
    );
    let lost = Span::styled(format!("lost {}", seen.events_lost), lost_style);
    let lines = [
        Line::from(vec![Span::styled("overlane watch", look.title()), Span::raw(first)]),
        Line::from(vec![Span::raw(second), lost, Span::raw(format!("  own CPU {cpu}"))]),
    ];
    lines.into_iter().chain(seen.softirqs().map(Line::raw)).collect()
}

fn drops_title(state: &State, snapshot: &Snapshot, look: Look) -> Line<'static> {
    let listed = state.rows.iter().filter_map(|row| match row {
        Row::Drop(drop) => snapshot.drops.get(*drop),
        _ => None,
    });
    // A recording may contain any number, so the sum must not overflow.
    let packets: u64 = listed.map(|drop| drop.packets).fold(0, u64::saturating_add);
    match packets {
        0 => Line::styled("dropped by the kernel: none", faint()),
        1 => Line::styled("dropped by the kernel: 1 packet", look.bad()),
        some => Line::styled(format!("dropped by the kernel: {some} packets"), look.bad()),
    }
}

/// Returns the text of the selected row that does not fit into the row.
fn about_lines(
    state: &State,
    snapshot: &Snapshot,
    columns: usize,
    look: Look,
) -> Vec<Line<'static>> {
    // A damaged recording is more important than the selected row.
    if let Some(problem) = state.position.as_ref().and_then(|position| position.problem.as_ref()) {
        return wrap(problem, columns).into_iter().map(|l| Line::styled(l, look.bad())).collect();
    }
    let text = match state.rows.get(state.selected) {
        Some(Row::Path(path)) => {
            let path = &snapshot.paths[*path];
            format!("{}: {}", flow(path), path.ending)
        }
        Some(Row::Hop(path, hop)) => {
            let hop = &snapshot.paths[*path].hops[*hop];
            let notes = match hop.notes().join(", ") {
                none if none.is_empty() => "no notes".to_owned(),
                notes => notes,
            };
            let device = hop.device.as_deref().unwrap_or("-");
            format!("{} {device} {}: {notes}", hop.namespace, hop.side.name())
        }
        Some(Row::Drop(drop)) => {
            let drop = &snapshot.drops[*drop];
            let function = drop.function.as_ref().map(|function| format!(" in {function}"));
            let meaning = drop.meaning.as_ref().map(|meaning| format!(": {meaning}"));
            [drop.reason.clone(), function.unwrap_or_default(), meaning.unwrap_or_default()]
                .concat()
        }
        None => String::new(),
    };
    wrap(&text, columns).into_iter().map(Line::raw).collect()
}

fn keys_of_list(state: &State) -> String {
    let filter = match state.filter.as_str() {
        "" => "/ filter".to_owned(),
        text => format!("/ filter: {}", foreign::plain(text)),
    };
    match &state.position {
        Some(_) => format!("? help  q quit  Space pause  Left Right step  s sort  {filter}"),
        None => format!("? help  q quit  s sort  f freeze  Enter open  {filter}"),
    }
}

fn key_line(state: &State, keys: &str, look: Look) -> Line<'static> {
    // While the filter is edited, keys are text, so no other keys are shown.
    if state.editing {
        let text =
            format!("filter: {}_  Enter applies it, Esc clears it", foreign::plain(&state.filter));
        return Line::raw(text);
    }
    let text = match &state.position {
        None if state.frozen => "frozen".to_owned(),
        None => "live".to_owned(),
        Some(position) => {
            let paused = match (position.paused, position.at >= position.of) {
                (_, true) => " end",
                (true, false) => " paused",
                (false, false) => "",
            };
            format!("{} of {} x{}{paused}", position.at, position.of, position.speed)
        }
    };
    Line::from(vec![Span::styled(text, look.title()), Span::raw(format!("  {keys}"))])
}
