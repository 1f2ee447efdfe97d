//! A test in a process of its own, asked, ended and killed.

use testbed::{Standing, stands};

#[test]
#[ignore = "runs in a process of its own"]
fn stands_until_told() {
    for asked in stands("and says so") {
        println!("{asked} {}", std::env::var("OVERLANE_STANDING_TEST").unwrap());
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn does_not_stand() {}

#[test]
fn it_is_asked_and_ends_when_told_or_killed() {
    for killed in [false, true] {
        let environment = [("OVERLANE_STANDING_TEST", "back")];
        let mut standing = Standing::start("stands_until_told", &environment).unwrap();
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
    let error = Standing::start("does_not_stand", &[]).unwrap_err();
    assert!(error.to_string().contains("does_not_stand"), "{error}");
}
