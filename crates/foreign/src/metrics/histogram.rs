//! Histograms of durations.

/// Upper limits of the buckets for packet latencies, in seconds.
pub(crate) const LATENCIES: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 1.0,
];

/// Durations by bucket, from 1 µs to 1 s.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// Count of each bucket alone; the last is for durations above all limits.
    buckets: [u64; LATENCIES.len() + 1],
    /// Sum in seconds.
    sum: f64,
}

impl Histogram {
    /// Adds a duration in nanoseconds.
    pub fn add_ns(&mut self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        // A duration equal to a limit belongs to that bucket.
        let bucket = LATENCIES.partition_point(|end| *end < seconds);
        self.buckets[bucket] += 1;
        self.sum += seconds;
    }

    /// Adds all durations of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += count;
        }
        self.sum += other.sum;
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Converts to the exposition format, in which each bucket includes the counts of all lower
    /// ones.
    pub(crate) fn to_proto(self) -> prometheus::proto::Histogram {
        // Buckets of the format are cumulative.
        let mut below = 0;
        let buckets = LATENCIES.iter().zip(&self.buckets).map(|(end, count)| {
            below += count;
            let mut bucket = prometheus::proto::Bucket::default();
            bucket.set_upper_bound(*end);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = prometheus::proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(self.count());
        histogram.set_sample_sum(self.sum);
        histogram
    }
}
