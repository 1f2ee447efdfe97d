//! Every chart as a separate SVG file.

use results::Results;

use crate::chart;

/// A chart as a stand-alone SVG file, light and dark.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartFile {
    name: String,
    /// Text of the SVG file, with its own style.
    pub svg: String,
}

impl ChartFile {
    /// Returns `03-ratio-tcp-stream-64-kib-messages-mtu-1500.svg`: its position on the page, its
    /// kind and its title, in characters that every file system accepts.
    pub fn file_name(&self) -> String {
        self.name.clone()
    }
}

/// Longest part of a file name that comes from a title.
const LONGEST: usize = 80;

/// Returns every chart of the page, in its order.
pub fn svg(results: &Results) -> Vec<ChartFile> {
    let own = chart::sections(results).into_iter().flat_map(|section| section.charts);
    let published = chart::published(results).map(|published| published.theirs);
    own.chain(published.unwrap_or_default())
        .enumerate()
        .map(|(i, chart)| {
            let mut words = String::new();
            for c in chart.title.chars() {
                match c {
                    c if c.is_ascii_alphanumeric() => words.push(c.to_ascii_lowercase()),
                    _ if words.len() < LONGEST && !words.ends_with('-') => words.push('-'),
                    _ => {}
                }
            }
            // File systems limit the length of names.
            words.truncate(LONGEST);
            let name = format!("{:02}-{}-{}.svg", i + 1, chart.slug, words.trim_matches('-'));
            ChartFile { name, svg: chart.file() }
        })
        .collect()
}
