//! A page: the metrics of one answer.
//!
//! It is built again for each answer, so that it shows only objects that still exist.

use std::collections::BTreeMap;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::histogram::Histogram;
use super::process::Process;

/// The metrics of one answer.
#[derive(Debug)]
pub struct Page {
    prefix: &'static str,
    families: BTreeMap<String, MetricFamily>,
}

impl Page {
    /// Creates a page whose metric names start with `prefix`, such as `overlane_accel`. It contains
    /// `build_info` and the resource usage of the process.
    pub fn new(prefix: &'static str, version: &str) -> Page {
        let mut page = Page { prefix, families: BTreeMap::new() };
        let info = [([version.to_owned()], 1.0)];
        page.gauges("build_info", "Version of overlane; always 1.", ["version"], info);
        if let Some(process) = Process::read() {
            let cpu = [no_label(|metric| metric.set_counter(counter(process.cpu)))];
            let (name, help) =
                ("process_cpu_seconds_total", "CPU time used by the process in seconds.");
            page.add(name.to_owned(), help, MetricType::COUNTER, cpu);
            let memory = [no_label(|metric| metric.set_gauge(gauge(process.memory)))];
            let (name, help) =
                ("process_resident_memory_bytes", "Resident memory of the process in bytes.");
            page.add(name.to_owned(), help, MetricType::GAUGE, memory);
        }
        page
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges::<0>(name, help, [], [([], value)]);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.counters::<0>(name, help, [], [([], value)]);
    }

    /// Adds gauges by label; values with the same label are added up.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        self.numbers(MetricType::GAUGE, name, help, labels, values);
    }

    /// Adds counters by label; values with the same label are added up.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        self.numbers(MetricType::COUNTER, name, help, labels, values);
    }

    fn numbers<const N: usize>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        let all = by_shown(values, |sum: &mut f64, value| *sum += value);
        let metrics = all.into_iter().map(|(values, value)| {
            labelled(labels, &values, |metric| match kind {
                MetricType::COUNTER => metric.set_counter(counter(value)),
                _ => metric.set_gauge(gauge(value)),
            })
        });
        self.add(self.named(name), help, kind, metrics);
    }

    /// Adds histograms by label; histograms with the same label are merged.
    pub fn histograms<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], Histogram)>,
    ) {
        let all = by_shown(values, |all: &mut Histogram, histogram| all.merge(&histogram));
        let metrics = all.into_iter().map(|(values, histogram)| {
            labelled(labels, &values, |metric| metric.set_histogram(histogram.to_proto()))
        });
        self.add(self.named(name), help, MetricType::HISTOGRAM, metrics);
    }

    fn named(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    fn add(
        &mut self,
        name: String,
        help: &str,
        kind: MetricType,
        metrics: impl IntoIterator<Item = Metric>,
    ) {
        // A family has a help text and a type, which all its series share.
        let mut family = MetricFamily::default();
        family.set_name(name.clone());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics.into_iter().collect());
        // The format does not allow a family without metrics.
        if !family.get_metric().is_empty() {
            self.families.insert(name, family);
        }
    }

    pub fn text(self) -> String {
        let families: Vec<MetricFamily> = self.families.into_values().collect();
        let mut text = Vec::new();
        // Every family has a name and a metric, so encoding can fail only if the code is wrong.
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            tracing::warn!("metrics: {error}");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn gauge(value: f64) -> Gauge {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    gauge
}

fn counter(value: f64) -> Counter {
    let mut counter = Counter::default();
    counter.set_value(value);
    counter
}

/// Combines figures by the labels as they are shown: two foreign names may look the same when
/// escaped, and a page must not contain a series twice.
fn by_shown<const N: usize, T: Default>(
    values: impl IntoIterator<Item = ([String; N], T)>,
    join: impl Fn(&mut T, T),
) -> BTreeMap<[String; N], T> {
    let mut all = BTreeMap::new();
    for (labels, value) in values {
        // Names may come from other users, who must not forge lines of the page.
        let shown = labels.map(|label| crate::plain(&label).into_owned());
        join(all.entry(shown).or_default(), value);
    }
    all
}

fn no_label(set: impl FnOnce(&mut Metric)) -> Metric {
    labelled([], &[], set)
}

fn labelled<const N: usize>(
    names: [&str; N],
    values: &[String; N],
    set: impl FnOnce(&mut Metric),
) -> Metric {
    let mut pairs: Vec<LabelPair> = names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value.clone());
            pair
        })
        .collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    let mut metric = Metric::from_label(pairs);
    set(&mut metric);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::histogram::LATENCIES;

    #[test]
    fn a_page_has_what_was_added_in_the_format_s_words() {
        let mut page = Page::new("overlane_test", "1.2.3");
        page.counter("seen_total", "Seen.", 3.0);
        page.gauges("empty", "Nothing.", ["a"], []);
        page.gauges(
            "by_name",
            "By name.",
            ["name", "kind"],
            ["b", "a\"b\\c\n\x1b[31m", "b"].map(|name| ([name.to_owned(), "k".to_owned()], 0.5)),
        );
        let mut histogram = Histogram::default();
        for ns in [0, 1000, 1001, 3_000_000_000] {
            histogram.add_ns(ns);
        }
        page.histograms("took_seconds", "Took.", ["hop"], [(["h".to_owned()], histogram)]);
        let alike = ["x\n", "x\\n"].map(|name| [name.to_owned()]);
        page.histograms(
            "alike_seconds",
            "Alike.",
            ["hop"],
            alike.clone().map(|name| (name, histogram)),
        );
        page.counters("alike_total", "Alike.", ["hop"], alike.map(|name| (name, 2.0)));
        let text = page.text();
        for line in [
            "overlane_test_build_info{version=\"1.2.3\"} 1",
            "# HELP overlane_test_seen_total Seen.",
            "# TYPE overlane_test_seen_total counter",
            "overlane_test_seen_total 3",
            "overlane_test_by_name{kind=\"k\",name=\"b\"} 1",
            "overlane_test_by_name{kind=\"k\",name=\"a\\\"b\\\\c\\\\n\\\\x1b[31m\"} 0.5",
            "# TYPE overlane_test_took_seconds histogram",
            "overlane_test_took_seconds_bucket{hop=\"h\",le=\"0.000001\"} 2",
            "overlane_test_took_seconds_bucket{hop=\"h\",le=\"0.0000025\"} 3",
            "overlane_test_took_seconds_bucket{hop=\"h\",le=\"1\"} 3",
            "overlane_test_took_seconds_bucket{hop=\"h\",le=\"+Inf\"} 4",
            "overlane_test_took_seconds_count{hop=\"h\"} 4",
            "overlane_test_alike_seconds_count{hop=\"x\\\\n\"} 8",
            "overlane_test_alike_total{hop=\"x\\\\n\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("overlane_test_empty") && !text.contains('\x1b'), "{text}");
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
        assert_eq!(text.matches("_bucket{").count(), 2 * (LATENCIES.len() + 1));
    }
}
