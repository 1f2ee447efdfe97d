//! Frame of every page: one file that loads and runs nothing. Its content security policy forbids
//! both.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{self, Chart, Section};

/// Charts of one kind shown before the rest is folded away.
const UNFOLDED: usize = 12;

/// Renders a page with a title, a heading, a line below it, and a body.
pub(crate) fn page(title: &str, heading: &str, line: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Without an icon, a browser would request one.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(chart::STYLE)) (PreEscaped(include_str!("page.css"))) }
            }
            body {
                header {
                    h1 { (heading) }
                    p.muted { (line) }
                }
                main { (body) }
            }
        }
    };
    // A second barrier: nothing is left to escape, unless a field was forgotten.
    foreign::lines(&page.into_string(), false).into_owned()
}

pub(crate) fn list(title: &str, items: Vec<String>) -> Markup {
    html! {
        @if !items.is_empty() {
            h3 { (title) }
            ul { @for item in &items { li { (item) } } }
        }
    }
}

fn figure(chart: &Chart) -> Markup {
    html! {
        figure {
            figcaption { b { (chart.title) } @if !chart.caption.is_empty() { br; (chart.caption) } }
            // Text was escaped when the chart was drawn.
            (PreEscaped(chart.inline()))
        }
    }
}

pub(crate) fn cards(charts: &[Chart]) -> Markup {
    let (shown, folded) = charts.split_at(charts.len().min(UNFOLDED));
    html! {
        div.cards { @for chart in shown { (figure(chart)) } }
        @if !folded.is_empty() {
            details {
                summary { (folded.len()) " more" }
                div.cards { @for chart in folded { (figure(chart)) } }
            }
        }
    }
}

pub(crate) fn charts(section: &Section) -> Markup {
    html! {
        section {
            h2 { (section.title) }
            @if !section.words.is_empty() { p.muted { (section.words) } }
            (cards(&section.charts))
        }
    }
}
