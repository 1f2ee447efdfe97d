//! Tables of comparisons within the terminal's width.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Spaces between columns.
const GAP: usize = 2;
/// Columns that name a row: mode and figure.
const NAMES: usize = 2;

/// Renders rows as lines of at most `width` columns. Figures that do not fit beside each other
/// follow in further tables with the same names. A name longer than the width makes its lines
/// longer.
///
/// Column `last_text` has text like the names, all others have numbers.
pub(super) fn lines(
    heads: &[&str],
    rows: &[Vec<String>],
    last_text: Option<usize>,
    width: usize,
) -> Vec<String> {
    parts(heads, rows, width)
        .iter()
        .flat_map(|part| part_lines(heads, rows, part, last_text))
        .collect()
}

/// Returns the widest field of a column, in characters.
pub(super) fn widest(heads: &[&str], rows: &[Vec<String>], at: usize) -> usize {
    let fields = rows.iter().filter_map(|row| row.get(at)).map(String::as_str);
    fields.chain([heads[at]]).map(|field| field.chars().count()).max().unwrap_or(0)
}

/// Returns the columns after the names, in parts that fit beside them.
fn parts(heads: &[&str], rows: &[Vec<String>], width: usize) -> Vec<Vec<usize>> {
    let names: usize = (0..NAMES).map(|at| widest(heads, rows, at) + GAP).sum();
    let (mut parts, mut taken) = (vec![Vec::new()], names);
    for at in NAMES..heads.len() {
        let column = widest(heads, rows, at);
        if parts.last().is_some_and(|part| !part.is_empty()) && taken + column > width {
            parts.push(Vec::new());
            taken = names;
        }
        taken += column + GAP;
        if let Some(part) = parts.last_mut() {
            part.push(at);
        }
    }
    parts
}

fn part_lines(
    heads: &[&str],
    rows: &[Vec<String>],
    part: &[usize],
    last_text: Option<usize>,
) -> Vec<String> {
    let columns: Vec<usize> = (0..NAMES).chain(part.iter().copied()).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(comfy_table::LineStyle::none().fill('─')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.force_no_tty();
    table.set_header(columns.iter().map(|at| heads[*at]));
    for row in rows {
        table.add_row(columns.iter().map(|at| row.get(*at).cloned().unwrap_or_default()));
    }
    for ((i, column), at) in table.column_iter_mut().enumerate().zip(&columns) {
        let is_last = i + 1 == columns.len();
        column.set_padding((0, if is_last { 0 } else { GAP as u16 }));
        let is_text = *at < NAMES || last_text == Some(*at);
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.to_string().lines().map(|line| line.trim_end().to_owned()).collect()
}
