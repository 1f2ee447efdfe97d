//! How often times were how long.

/// Upper ends of buckets for the time that packets take, seconds.
pub(crate) const LATENCIES: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 1.0,
];

/// Times by bucket, from 1 µs to 1 s.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// Of each bucket alone; the last has those above all ends.
    buckets: [u64; LATENCIES.len() + 1],
    /// Sum, seconds.
    sum: f64,
}

impl Histogram {
    /// Adds a time, ns.
    pub fn add_ns(&mut self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        let bucket = LATENCIES.partition_point(|end| *end < seconds);
        self.buckets[bucket] += 1;
        self.sum += seconds;
    }

    /// Adds the times of another.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += count;
        }
        self.sum += other.sum;
    }

    /// How many were added.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// As the format has it: each bucket counts those of the ones before, too.
    pub(crate) fn to_proto(self) -> prometheus::proto::Histogram {
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
