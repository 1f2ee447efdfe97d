//! Parses requests into changes. Earlier values are read before a change is made, so that every
//! change can be undone.
//!
//! A [`Request`] has one of two forms: named settings (`ring@eth0=4096`) or a command (`ethtool -G
//! eth0 rx 4096 tx 4096`). For a command with an unknown effect, [`ProposalError::Unknown`], the
//! caller must also supply its inverse.

use std::fmt;

use crate::change::{Change, Namespace};
use crate::command_form;
use crate::named_form::{self, NamedSetting};
use crate::resolve::Resolver;
pub use crate::resolve::{ProposalError, Result};

/// One or more settings that are changed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    text: String,
    form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Named(Vec<NamedSetting>),
    Command,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Request {
    /// Parses named settings or a command, with one value each.
    ///
    /// # Errors
    /// [`ProposalError::Wrong`]. The effect of a command is not examined yet.
    pub fn parse(text: &str) -> Result<Request> {
        if !named_form::is_named(text) {
            return Ok(Request { text: text.trim().to_owned(), form: Form::Command });
        }
        match &mut Request::parse_list(text)?[..] {
            [request] => Ok(request.clone()),
            _ => Err(ProposalError::Wrong(format!(
                "{text:?}: only one value can be tried at a time"
            ))),
        }
    }

    /// Parses named settings: `KIND=VALUE,VALUE…` yields one request per value. Several settings
    /// joined with `+`, each with one value, form one request.
    ///
    /// # Errors
    /// [`ProposalError::Wrong`], which names the fault and the allowed forms.
    pub fn parse_list(text: &str) -> Result<Vec<Request>> {
        if text.contains('+') {
            let one = |text: &str| match &named_form::parse_list(text)?[..] {
                [named] => Ok(named.clone()),
                _ => Err(ProposalError::Wrong(format!(
                    "{text:?}: changes joined with + have one value each"
                ))),
            };
            let named = text.split('+').map(one).collect::<Result<_>>()?;
            return Ok(vec![Request { text: text.to_owned(), form: Form::Named(named) }]);
        }
        let named = named_form::parse_list(text)?;
        Ok(named
            .into_iter()
            .map(|one| Request { text: one.to_string(), form: Form::Named(vec![one]) })
            .collect())
    }

    /// Returns the named settings of the request; empty for a command.
    pub fn named(&self) -> &[NamedSetting] {
        match &self.form {
            Form::Named(named) => named,
            Form::Command => &[],
        }
    }

    /// Returns the changes of the request, with the present values. `namespace` is the caller's;
    /// `device` is the default if the request names none.
    pub fn changes(&self, namespace: &Namespace, device: Option<&str>) -> Result<Vec<Change>> {
        let mut resolver = Resolver::new(namespace.clone());
        match &self.form {
            Form::Named(named) => {
                named.iter().try_for_each(|one| one.resolve(&mut resolver, device))?;
            }
            Form::Command => command_form::read(&mut resolver, &self.text)?,
        }
        resolver.changes()
    }
}

/// Returns the changes of a request in the caller's namespace, with the present values. Settings
/// that already have the requested value are left out.
///
/// # Errors
/// [`ProposalError`]; [`ProposalError::AlreadySo`] if nothing is left.
pub fn changes(request: &str) -> Result<Vec<Change>> {
    differing(Request::parse(request)?.changes(&Namespace::here()?, None)?)
}

/// Returns the changes whose old and new values differ.
///
/// # Errors
/// [`ProposalError::AlreadySo`] if there are none.
pub fn differing(changes: Vec<Change>) -> Result<Vec<Change>> {
    let (already, differing): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(Change::is_so);
    // A change that changes nothing would be measured as one without effect.
    if differing.is_empty() {
        let so = |change: &Change| format!("{} is {}", change.object(), change.from);
        return Err(ProposalError::AlreadySo(
            already.iter().map(so).collect::<Vec<_>>().join(", "),
        ));
    }
    Ok(differing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        Request::parse_list(text).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_is_a_setting_a_value() {
        assert_eq!(names("ring=512,4096"), ["ring=512", "ring=4096"]);
        assert_eq!(names("offload=none"), ["offload=none"]);
        assert_eq!(names("feature:rx-gro@eth0.7=on,off").len(), 2);
        assert_eq!(
            names("sysctl:net.core.netdev_budget=300,1000"),
            ["sysctl:net.core.netdev_budget=300", "sysctl:net.core.netdev_budget=1000"]
        );
        let both = "ring=4096+sysctl:net.core.netdev_budget=1000";
        assert_eq!(names(both), [both]);
        assert_eq!(Request::parse_list(both).unwrap()[0].named().len(), 2);
    }

    #[test]
    fn problems_are_named() {
        for (bad, named) in [
            ("ring", "allowed are sysctl:KEY"),
            ("ringg=1", "allowed are sysctl:KEY"),
            ("ring=", "a number of at least 1"),
            ("queues=0", "a number of at least 1"),
            ("offload=some", "known: full, no-tunnel, none"),
            ("ring=1,2+queues=1", "one value each"),
            ("sysctl:net/../kernel/panic=1", "is not a key"),
            ("sysctl:net.core.netdev_budget=", "a value is missing"),
            ("ring@=1", "the device is missing"),
            ("feature:rx-gro=maybe", "expected on or off"),
            ("coalesce:rx-used=1", "not a parameter"),
            ("sysfs:../../x=1", "not an attribute"),
        ] {
            let problem = Request::parse_list(bad).unwrap_err().to_string();
            assert!(problem.contains(named), "{bad}: {problem}");
        }
    }

    #[test]
    fn text_without_a_setting_is_a_command() {
        for command in ["ethtool -K eth0 gro off", "sysctl -w net.ipv4.ip_forward=1", "true", ""] {
            assert!(Request::parse(command).unwrap().named().is_empty(), "{command}");
        }
        assert_eq!(Request::parse("rps@eth0=2").unwrap().named().len(), 1);
        let lists = Request::parse("ring=1,2").unwrap_err().to_string();
        assert!(lists.contains("one value can be tried"), "{lists}");
    }
}
