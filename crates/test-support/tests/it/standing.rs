//! A test in a separate process: queried, ended and killed.

use test_support::standing::{Standing, is_meant, stands};

const STANDS: &str = "standing::it_answers_and_ends_on_request_or_when_killed";

/// In a process of its own.
fn stands_until_requested_to_end() {
    for asked in stands("and says so") {
        println!("{asked} {}", std::env::var("OVERLANE_STANDING_TEST").unwrap());
    }
}

#[test]
fn it_answers_and_ends_on_request_or_when_killed() {
    if is_meant() {
        return stands_until_requested_to_end();
    }
    for killed in [false, true] {
        let environment = [("OVERLANE_STANDING_TEST", "back")];
        let mut standing = Standing::start(STANDS, &environment).unwrap();
        assert_eq!(standing.said(), "and says so");
        assert_eq!(standing.ask("there and").unwrap(), "there and back");
        let alive = std::path::PathBuf::from(format!("/proc/{}", standing.pid()));
        assert!(alive.exists());
        if killed { standing.kill() } else { standing.end() }.unwrap();
        assert!(!alive.exists());
        standing.ask("again").unwrap_err();
    }
}

#[test]
fn one_that_ends_before_it_stands_is_an_error() {
    let error = Standing::start("no_such_test", &[]).unwrap_err();
    assert!(error.to_string().contains("no_such_test"), "{error}");
}
