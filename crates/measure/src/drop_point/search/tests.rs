use std::convert::Infallible;

use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;

/// A path of known capacity with realistic disturbances.
struct Path {
    /// Maximum rate without loss, datagrams/s.
    capacity: f64,
    /// Maximum rate of the generator, datagrams/s.
    generator: f64,
    /// Relative deviation of the capacity between trials.
    noise: f64,
    /// Share of trials in which foreign load makes the path lose 3%.
    bursts: f64,
    /// Share of trials that are void.
    voids: f64,
    random: Pcg64,
}

impl Path {
    fn new(capacity: f64, seed: u64) -> Path {
        let random = Pcg64::seed_from_u64(seed);
        Path { capacity, generator: 1e9, noise: 0.0, bursts: 0.0, voids: 0.0, random }
    }

    fn trial(&mut self, per_s: f64) -> Result<Trial, Infallible> {
        if self.random.random::<f64>() < self.voids {
            return Ok(Trial::Disturbed);
        }
        if per_s > self.generator {
            return Ok(Trial::NotKept);
        }
        let intended = (per_s * 0.1) as u64;
        let wobble = 1.0 + self.noise * (self.random.random::<f64>() * 2.0 - 1.0);
        let mut received = intended.min((self.capacity * wobble * 0.1) as u64);
        if self.random.random::<f64>() < self.bursts {
            received = received * 97 / 100;
        }
        Ok(Trial::Counted { intended, received })
    }
}

fn asked(start: f64) -> Asked {
    Asked {
        goals: vec![0.0, 0.001, 0.005],
        width: 0.02,
        lead: 2,
        sure_lead: 3,
        load_trials: 9,
        most_trials: 80,
        least: 100.0,
        start,
    }
}

fn run(asked: &Asked, path: &mut Path) -> Found {
    let Ok(found) = search(asked, |per_s| path.trial(per_s));
    found
}

#[test]
fn the_capacity_lies_between_the_bounds_of_every_goal() {
    for start in [50_000.0, 99_000.0, 101_000.0, 400_000.0] {
        let found = run(&asked(start), &mut Path::new(100_000.0, 1));
        assert!(found.narrowed.iter().all(|goal| *goal), "{start}: {found:?}");
        for goal in &found.point.goals {
            // The load at which exactly the goal's share is lost.
            let exact = 100_000.0 / (1.0 - goal.loss);
            let missed = goal.missed.unwrap();
            assert!(goal.kept <= exact + 10.0 && missed >= exact - 10.0, "{start}: {goal:?}");
            assert!((missed - goal.kept) / missed <= 0.02, "{start}: {goal:?}");
            assert!(goal.per_s <= 100_000.0 && goal.per_s >= goal.kept * (1.0 - goal.loss));
        }
        assert_eq!(found.point.generator_limit, None);
        // One trial decides nothing, and the goals share trials.
        assert!((8..40).contains(&found.point.trials), "{start}: {found:?}");
    }
}

#[test]
fn searches_of_a_noisy_path_agree() {
    let mut agreed = 0;
    let searches = 200;
    for seed in 0..searches {
        let mut path = Path::new(100_000.0, seed);
        (path.noise, path.bursts, path.voids) = (0.01, 0.1, 0.1);
        let three: Vec<f64> =
            (0..3).map(|_| run(&asked(130_000.0), &mut path).point.goals[1].per_s).collect();
        let (low, high) = three
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(*x), high.max(*x)));
        agreed += u64::from(high / low <= 1.05);
        assert!(high < 102_000.0, "{seed}: {three:?}");
    }
    // Three searches in a row agree within 5%.
    assert!(agreed >= 190, "{agreed} of {searches}");
}

#[test]
fn a_generator_that_is_the_limit_is_named() {
    let mut path = Path::new(1e9, 1);
    path.generator = 300_000.0;
    let found = run(&asked(250_000.0), &mut path);
    let limit = found.point.generator_limit.unwrap();
    assert!((290_000.0..=300_000.0).contains(&limit), "{found:?}");
    assert!(found.narrowed.iter().all(|goal| *goal), "{found:?}");
    for goal in &found.point.goals {
        assert_eq!((goal.missed, goal.kept), (None, limit));
    }
    assert!(found.point.void_trials >= 2, "{found:?}");
}

#[test]
fn a_path_that_always_loses_keeps_no_goal() {
    let trial = |_| Ok::<_, Infallible>(Trial::Counted { intended: 1000, received: 900 });
    let Ok(found) = search(&asked(10_000.0), trial);
    assert!(found.point.goals.iter().all(|goal| (goal.kept, goal.per_s) == (0.0, 0.0)));
    assert!(found.narrowed.iter().all(|goal| *goal), "down to the lowest load: {found:?}");
}

#[test]
fn nothing_but_disturbance_ends_and_finds_nothing() {
    let Ok(found) = search(&asked(10_000.0), |_| Ok::<_, Infallible>(Trial::Disturbed));
    assert_eq!((found.point.trials, found.point.void_trials), (80, 80));
    assert_eq!(found.narrowed, [false; 3]);
    assert!(found.point.goals.iter().all(|goal| goal.kept == 0.0 && goal.missed.is_none()));
}

#[test]
fn one_bad_trial_of_three_does_not_turn_a_load() {
    let load = |losses: &[f64]| Load { per_s: 1.0, losses: losses.to_vec(), not_kept: 0 };
    let class = |losses: &[f64]| load(losses).class(0.0, 2, 5);
    assert_eq!(class(&[0.0]), Class::Undecided);
    assert_eq!(class(&[0.0, 0.0]), Class::Lower);
    assert_eq!(class(&[0.4, 0.5]), Class::Upper);
    assert_eq!(class(&[0.0, 0.5]), Class::Undecided);
    assert_eq!(class(&[0.0, 0.0, 0.0, 0.5]), Class::Lower);
    // No side leads by two: the majority of five decides.
    assert_eq!(class(&[0.0, 0.0, 0.0, 0.4, 0.5]), Class::Lower);
    assert_eq!(class(&[0.0, 0.0, 0.3, 0.4, 0.5]), Class::Upper);
    assert_eq!(load(&[0.0, 0.002, 0.5]).typical_loss(), 0.002);
    assert_eq!(load(&[]).typical_loss(), 1.0);
}

#[test]
fn a_wrong_upper_bound_is_found_out() {
    // The first two trials, below the capacity, are disturbed.
    let mut trials = 0;
    let Ok(found) = search(&asked(90_000.0), |per_s| {
        trials += 1;
        let received = per_s.min(100_000.0) * if trials <= 2 { 0.9 } else { 1.0 };
        Ok::<_, Infallible>(Trial::Counted { intended: per_s as u64, received: received as u64 })
    });
    assert!(found.point.goals.iter().all(|goal| goal.kept > 98_000.0), "{found:?}");
}

#[test]
fn an_error_ends_the_search() {
    assert_eq!(search(&asked(10.0), |_| Err::<Trial, _>("broken")), Err("broken"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// For any path, the search ends and does not contradict itself.
    #[test]
    fn any_path_is_searched_in_bounded_trials(
        seed in any::<u64>(),
        start in 1.0_f64..1e8,
        most_trials in 1_u32..200,
        steadiness in 0.0_f64..1.0,
        capacity in 1.0_f64..1e8,
    ) {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut calls = 0;
        let asked = Asked { most_trials, ..asked(start) };
        let Ok(found) = search(&asked, |per_s| {
            calls += 1;
            assert!(per_s >= 1.0 && per_s.is_finite());
            let intended = random.next_u64() % 100_000;
            Ok::<_, Infallible>(match random.random::<f64>() {
                x if x < steadiness => Trial::Counted {
                    intended: per_s as u64,
                    received: per_s.min(capacity) as u64,
                },
                x if x < 0.2 => Trial::NotKept,
                x if x < 0.4 => Trial::Disturbed,
                _ => Trial::Counted { intended, received: random.next_u64() % 110_000 },
            })
        });
        prop_assert!(calls <= most_trials);
        prop_assert_eq!(calls, found.point.trials);
        prop_assert!(found.point.void_trials <= calls);
        for goal in &found.point.goals {
            prop_assert!(goal.per_s <= goal.kept);
            prop_assert!(goal.missed.is_none_or(|missed| missed > goal.kept));
        }
        // A load that keeps a stricter goal keeps the others.
        prop_assert!(found.point.goals.is_sorted_by(|a, b| a.kept <= b.kept));
        if let Some(limit) = found.point.generator_limit {
            prop_assert!(found.point.goals.iter().all(|goal| goal.kept <= limit));
        }
    }
}
