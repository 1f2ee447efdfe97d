//! Places labels without overlap. A label without room is left out; its name is still in the table
//! or the tooltip.

use super::svg::{FONT, LINE, text_width};

/// Smallest distance between two labels, pixels.
const GAP: f64 = 6.0;

/// Returns the indices of labels that fit beside each other. Labels are centred at `x`, in this
/// order. The last one takes precedence over the one before it.
pub(crate) fn beside(labels: &[(f64, String)]) -> Vec<usize> {
    let ends = |i: usize| {
        let half = 0.5 * text_width(&labels[i].1);
        (labels[i].0 - half, labels[i].0 + half)
    };
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by(|x, y| labels[*x].0.total_cmp(&labels[*y].0));
    let mut kept: Vec<usize> = Vec::new();
    for (nth, i) in order.iter().enumerate() {
        let is_last = nth + 1 == order.len();
        while let Some(before) = kept.last().copied() {
            let fits = ends(before).1 + GAP <= ends(*i).0;
            // Only the last label may displace earlier ones: the ends of the axis matter most. The
            // first label always stays.
            if fits || !is_last || kept.len() == 1 {
                break;
            }
            kept.pop();
        }
        let fits = kept.last().is_none_or(|before| ends(*before).1 + GAP <= ends(*i).0);
        if fits {
            kept.push(*i);
        }
    }
    kept.sort_unstable();
    kept
}

/// Occupied places of an image.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    boxes: Vec<(f64, f64, f64, f64)>,
}

impl Taken {
    /// Finds a place for a text near a point, within `x` and `y`. Returns its start and baseline,
    /// or `None` if there is no room.
    pub(crate) fn near(
        &mut self,
        at: (f64, f64),
        text: &str,
        x: (f64, f64),
        y: (f64, f64),
    ) -> Option<(f64, f64)> {
        let (width, height) = (text_width(text), FONT + 3.0);
        let (right, left) = (at.0 + GAP, at.0 - GAP - width);
        let centre = at.0 - 0.5 * width;
        let candidates = [
            (right, at.1 - 3.0),
            (left, at.1 - 3.0),
            (right, at.1 + FONT),
            (left, at.1 + FONT),
            (centre, at.1 - 7.0),
            (centre, at.1 + FONT + 6.0),
        ];
        let place = candidates.into_iter().find(|(start, baseline)| {
            let (top, bottom) = (baseline - FONT, baseline - FONT + height);
            *start >= x.0
                && start + width <= x.1
                && top >= y.0
                && bottom <= y.1
                && self.is_free(*start, top, start + width, bottom)
        })?;
        self.take(place.0, place.1 - FONT, place.0 + width, place.1 - FONT + height);
        Some(place)
    }

    fn is_free(&self, left: f64, top: f64, right: f64, bottom: f64) -> bool {
        !self
            .boxes
            .iter()
            .any(|b| left < b.2 + 2.0 && b.0 < right + 2.0 && top < b.3 && b.1 < bottom)
    }

    /// Marks a box as occupied.
    pub(crate) fn take(&mut self, left: f64, top: f64, right: f64, bottom: f64) {
        self.boxes.push((left, top, right, bottom));
    }
}

/// Returns the places of legend entries with swatches of `swatch` pixels, in rows of `width`, and
/// their total height.
pub(crate) fn rows(names: &[String], swatch: f64, width: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (0.0, 0.0);
    let mut places = Vec::new();
    for name in names {
        let taken = swatch + text_width(name);
        // An entry wider than the row still gets a row, without an empty row before it.
        if x > 0.0 && x + taken > width {
            (x, y) = (0.0, y + LINE);
        }
        places.push((x, y));
        x += taken + 2.0 * GAP;
    }
    (places, if names.is_empty() { 0.0 } else { y + LINE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beside_each_other_do_not_overlap() {
        let labels: Vec<(f64, String)> =
            (0..30).map(|i| (i as f64 * 11.0, format!("{i}00"))).collect();
        let kept = beside(&labels);
        assert_eq!((kept.first(), kept.last()), (Some(&0), Some(&29)), "both ends");
        assert!(kept.len() > 5 && kept.len() < 30);
        for pair in kept.windows(2) {
            let (a, b) = (&labels[pair[0]], &labels[pair[1]]);
            assert!(a.0 + 0.5 * text_width(&a.1) < b.0 - 0.5 * text_width(&b.1));
        }
        assert!(beside(&[]).is_empty());
        assert_eq!(beside(&[(5.0, "x".repeat(99)), (6.0, "y".into())]).len(), 1);
    }

    #[test]
    fn labels_near_points_avoid_those_placed_before() {
        let mut taken = Taken::default();
        let room = ((0.0, 300.0), (0.0, 200.0));
        let places: Vec<_> =
            (0..20).filter_map(|_| taken.near((150.0, 100.0), "label", room.0, room.1)).collect();
        assert!((2..=6).contains(&places.len()), "{places:?}");
        for (i, a) in places.iter().enumerate() {
            for b in &places[..i] {
                let apart = (a.0 - b.0).abs() >= text_width("label") || (a.1 - b.1).abs() >= FONT;
                assert!(apart, "{a:?} {b:?}");
            }
        }
        assert_eq!(taken.near((299.0, 1.0), &"long".repeat(30), room.0, room.1), None);
    }

    #[test]
    fn a_legend_breaks_into_rows() {
        let names: Vec<String> = (0..13).map(|i| format!("mode-number-{i}")).collect();
        let (places, height) = rows(&names, 20.0, 330.0);
        assert!(height >= 4.0 * LINE);
        for (place, name) in places.iter().zip(&names) {
            assert!(place.0 == 0.0 || place.0 + 20.0 + text_width(name) <= 330.0);
        }
    }
}
