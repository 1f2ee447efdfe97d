use std::collections::BTreeMap;

use super::*;
use load::{Datagrams, Workload};
use results::Loss;

/// Result of a trial over a path that carries `capacity` datagrams/s. The generator sends
/// `unpaced` datagrams/s without a schedule.
fn trial(load: &Load, capacity: f64, unpaced: f64) -> Trialled {
    let seconds = load.duration.as_secs_f64();
    let per_s = load.datagrams_per_s.map_or(unpaced, |per_s| per_s as f64);
    let sent = (per_s.min(unpaced) * seconds) as u64;
    let received = sent.min((capacity * seconds) as u64);
    let intended = load.datagrams_per_s.map(|per_s| (per_s as f64 * seconds) as u64);
    let pace = intended.map(|intended| Pacing {
        intended_per_s: per_s,
        sent_per_s: per_s * sent as f64 / intended.max(1) as f64,
        late_p50_us: 1.0,
        late_p99_us: 2.0,
        late_max_us: 3.0,
    });
    let measured = Measured {
        workload: Workload::UdpStream,
        seconds,
        payload_bytes: received * 64,
        messages_merge: false,
        under_way_bytes: 0,
        units: received,
        sent_units: sent,
        datagrams: Some(Datagrams { intended, sent, received }),
        latency: None,
        histogram: None,
        pace,
        tcp_retransmits: None,
        tcp: None,
        arrivals: None,
        ecn: None,
        socket_errors: BTreeMap::new(),
        flows: Vec::new(),
        beside: Vec::new(),
        steps: Vec::new(),
        notes: Vec::new(),
    };
    let lost = sent - received;
    let loss = Loss {
        sent,
        received,
        fraction: lost as f64 / sent as f64,
        places: BTreeMap::from([("b socket buffer".to_owned(), lost)]),
        unattributed: 0,
    };
    let sample = Sample {
        valid: true,
        path_proved: true,
        value: measured.rate(),
        units: received,
        pace,
        loss: Some(loss),
        ..Sample::default()
    };
    (measured, sample)
}

fn load() -> Load {
    Load { duration: Duration::from_millis(500), ..Load::new(Workload::UdpStream) }
}

fn drop_point(run: impl FnMut(&Load) -> Result<Trialled, Failed>) -> Sample {
    match take(&load(), Duration::ZERO, run) {
        Ok(sample) => sample,
        Err(Failed::Broken(sample)) => *sample,
        Err(Failed::Stopped) => panic!("stopped without a request"),
    }
}

#[test]
fn the_value_is_what_was_received_at_the_best_rate_within_a_thousandth() {
    let mut trials = Vec::new();
    let sample = drop_point(|load| {
        trials.push((load.datagrams_per_s, load.duration, load.socket_buffer_bytes));
        Ok(trial(load, 100_000.0, 150_000.0))
    });
    assert_eq!((sample.valid, &sample.invalid_reason), (true, &None));
    let point = sample.drop_point.unwrap();
    assert_eq!(sample.value, point.goals[VALUE_GOAL].per_s);
    assert!((97_000.0..=100_000.0).contains(&sample.value), "{point:?}");
    assert_eq!(point.goals.iter().map(|goal| goal.loss).collect::<Vec<_>>(), GOALS);
    // The first trial is unpaced, and the search begins at what it received.
    assert_eq!((trials[0].0, trials[1].0), (None, Some(100_000)));
    let (length, buffer) = (Duration::from_millis(100), Some(SOCKET_BUFFER));
    assert!(trials.iter().all(|trial| (trial.1, trial.2) == (length, buffer)));
    // The other figures come from a trial at the rate that was kept.
    assert!((sample.pace.unwrap().intended_per_s - point.goals[VALUE_GOAL].kept).abs() < 1.0);
    // The loss counts all trials, including the unpaced one.
    let loss = sample.loss.unwrap();
    assert!(loss.sent - loss.received >= 5_000, "{loss:?}");
    assert_eq!(loss.places["b socket buffer"], loss.sent - loss.received);
}

#[test]
fn a_path_faster_than_the_generator_names_it() {
    let sample = drop_point(|load| Ok(trial(load, 1e9, 150_000.0)));
    let point = sample.drop_point.unwrap();
    assert!(sample.valid, "{point:?}");
    let limit = point.generator_limit.unwrap();
    assert!((147_000.0..=151_600.0).contains(&limit), "{point:?}");
    assert!(point.goals.iter().all(|goal| goal.missed.is_none()), "{point:?}");
}

#[test]
fn a_path_that_was_not_taken_ends_the_search() {
    let mut trials = 0;
    let sample = drop_point(|load| {
        trials += 1;
        let (measured, mut sample) = trial(load, 1e5, 2e5);
        if trials == 4 {
            sample.path_proved = false;
            sample.valid = false;
            sample.invalid_reason = Some("hop".to_owned());
        }
        Ok((measured, sample))
    });
    assert_eq!((trials, sample.valid, sample.path_proved), (4, false, false));
    assert_eq!(sample.invalid_reason.as_deref(), Some("hop"));
}

#[test]
fn a_disturbed_trial_is_made_again_and_counted_as_void() {
    let mut trials = 0;
    let sample = drop_point(|load| {
        trials += 1;
        let (measured, mut sample) = trial(load, 1e5, 2e5);
        // Every second trial, starting with the first, loses everything.
        if trials % 2 == 1 {
            sample.valid = false;
            sample.loss.as_mut().unwrap().received = 0;
        }
        Ok((measured, sample))
    });
    let point = sample.drop_point.unwrap();
    assert!(sample.valid, "{:?} {point:?}", sample.invalid_reason);
    assert!(point.void_trials > 5, "{point:?}");
    assert!((97_000.0..=100_000.0).contains(&sample.value), "{point:?}");
    assert!(sample.loss.unwrap().received > 0);
}

#[test]
fn a_machine_that_is_always_disturbed_gives_no_sample() {
    let mut trials = 0;
    let sample = drop_point(|load| {
        trials += 1;
        let (measured, sample) = trial(load, 1e5, 2e5);
        let reason = Some("30% stolen".to_owned());
        Ok((measured, Sample { valid: false, invalid_reason: reason, ..sample }))
    });
    assert_eq!((trials, sample.valid), (FIRST_TRIES, false));
    assert_eq!(sample.invalid_reason.as_deref(), Some("30% stolen"));
}

#[test]
fn no_rate_without_loss_is_said_and_is_no_figure() {
    let sample = drop_point(|load| {
        let (mut measured, sample) = trial(load, 1e5, 2e5);
        let datagrams = measured.datagrams.as_mut().unwrap();
        datagrams.received = datagrams.sent / 2;
        Ok((measured, sample))
    });
    assert!(!sample.valid && sample.path_proved);
    let reason = sample.invalid_reason.unwrap();
    assert!(reason.contains("at most 0.1%"), "{reason}");
}

#[test]
fn asked_to_stop_it_stops() {
    let mut trials = 0;
    let outcome = take(&load(), Duration::ZERO, |load| {
        trials += 1;
        if trials == 3 { Err(Failed::Stopped) } else { Ok(trial(load, 1e5, 2e5)) }
    });
    assert!(matches!(outcome, Err(Failed::Stopped)));
    assert_eq!(trials, 3);
}
