//! The other host: its clock, and what was lost between it and this one.

use observe::PeerSeen;
use ratatui::text::Line;

use super::line::{fit, wrap};
use super::look::{Look, faint};
use super::state::State;

/// The page, in lines of so many columns.
pub fn lines(state: &State, columns: usize, look: Look) -> Vec<Line<'static>> {
    let peer = state.shown.as_ref().and_then(|snapshot| snapshot.peer.as_ref());
    let Some(peer) = peer else {
        return wrap("no other host is asked: --peer", columns)
            .into_iter()
            .map(Line::raw)
            .collect();
    };
    let text = peer.text();
    let mut lines = text.lines().flat_map(|line| {
        // What is set in stays set in when it is broken.
        let indent = line.len() - line.trim_start().len();
        let room = columns.saturating_sub(indent);
        let parts = wrap(line.trim_start(), room).into_iter();
        parts.map(move |part| Line::raw(" ".repeat(indent) + &part)).collect::<Vec<_>>()
    });
    let first = lines.next().map(|line| line.style(style(peer, look)));
    first.into_iter().chain(lines).collect()
}

/// A line of the list's page.
pub fn title(peer: &PeerSeen, columns: usize, look: Look) -> Line<'static> {
    let lost = match peer.lost() {
        0 => String::new(),
        some => format!("{some} lost between the hosts, "),
    };
    let flows = peer.flows.len();
    let text = match peer.trouble() {
        Some(problem) => format!("peer {}: does not answer: {problem}", peer.address),
        None => {
            let clock = peer.clock.map_or("-".to_owned(), |clock| clock.to_string());
            format!("peer {}: {lost}{flows} flows, {clock}  p", peer.address)
        }
    };
    Line::styled(fit(&text, columns), style(peer, look))
}

fn style(peer: &PeerSeen, look: Look) -> ratatui::style::Style {
    if peer.problem.is_some() || peer.lost() > 0 { look.bad() } else { faint() }
}
