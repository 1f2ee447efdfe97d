//! The peer page: its clock, and packets lost between it and this host.

use observe::PeerSeen;
use ratatui::text::Line;

use super::line::{fit, wrap};
use super::look::{Look, faint};
use super::state::State;

/// Returns the lines of the page, each at most `columns` wide.
pub fn lines(state: &State, columns: usize, look: Look) -> Vec<Line<'static>> {
    let peer = state.shown.as_ref().and_then(|snapshot| snapshot.peer.as_ref());
    let Some(peer) = peer else {
        return wrap("no peer (see --peer)", columns).into_iter().map(Line::raw).collect();
    };
    let text = peer.text();
    let mut lines = text.lines().flat_map(|line| {
        // Keep the indentation in wrapped lines.
        let indent = line.len() - line.trim_start().len();
        let room = columns.saturating_sub(indent);
        let parts = wrap(line.trim_start(), room).into_iter();
        parts.map(move |part| Line::raw(" ".repeat(indent) + &part)).collect::<Vec<_>>()
    });
    // The first line reports the state of the peer, so it shows problems in colour.
    let first = lines.next().map(|line| line.style(style(peer, look)));
    first.into_iter().chain(lines).collect()
}

/// Returns the peer line of the list page.
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
