//! Addresses and tokens of `measure serve` and `measure run`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::Context;
use channel::{Event, Token};
use measure::remote::PORT;
use results::Privileges;

use crate::exit::usage;
use crate::output::complain;

/// Who runs this, as the results file has it. Neither verb enters a user
/// namespace: the path is this machine's own.
pub fn privileges() -> Privileges {
    if nix::unistd::geteuid().is_root() { Privileges::Root } else { Privileges::User }
}

/// The token of `--token`.
///
/// # Errors
/// A usage error naming the file and what is wrong with it.
pub fn token(file: Option<&Path>) -> anyhow::Result<Option<Token>> {
    file.map(Token::read).transpose().map_err(|error| usage("--token", error))
}

/// A line a session on standard error; when that is closed, nobody reads it.
pub fn tell(event: Event) {
    complain(&match event {
        Event::Opened(client) => format!("{client}: session opened"),
        Event::Closed(client, why) => format!("{client}: session over: {why}"),
        Event::TurnedAway(client, why) => format!("{client}: turned away: {why}"),
        Event::MoreTurnedAway { count, over, most } => {
            let most = most.map_or_else(String::new, |most| format!(", most from {most}"));
            let seconds = over.as_secs_f64();
            format!("{count} more connections turned away in the last {seconds:.0} s{most}")
        }
    });
}

/// `HOST[:PORT]`: a name, an IPv4 address, an IPv6 address in brackets where a
/// port follows.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Host name or IP address, without brackets.
    pub host: &'a str,
    /// TCP port of the control connection; the data port is the next.
    pub port: u16,
}

impl<'a> Target<'a> {
    /// Reads it; the data port is the next one, so the last port is none.
    ///
    /// # Errors
    /// A usage error.
    pub fn parse(argument: &str, text: &'a str) -> anyhow::Result<Target<'a>> {
        Target::parse_with(argument, text, PORT)
    }

    /// The same with another port where none is given.
    ///
    /// # Errors
    /// A usage error.
    pub fn parse_with(argument: &str, text: &'a str, port: u16) -> anyhow::Result<Target<'a>> {
        let default = port;
        let wanted = || usage(argument, format!("{text:?}: wanted HOST, HOST:PORT or [IPV6]:PORT"));
        let (host, port) = if text.parse::<IpAddr>().is_ok() {
            (text, None)
        } else if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(wanted)?;
            let port = if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':').ok_or_else(wanted)?)
            };
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wanted())?;
            (host, port)
        } else {
            text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(wanted());
        }
        let port = match port {
            None => default,
            Some(port) => {
                port.parse().ok().filter(|port| (1..u16::MAX).contains(port)).ok_or_else(|| {
                    usage(argument, format!("{text:?}: port {port:?} is not 1 to 65534"))
                })?
            }
        };
        Ok(Target { host, port })
    }

    /// Its first address that can be connected to.
    ///
    /// # Errors
    /// An unknown name; an address that is none of one machine.
    pub fn resolve(&self, argument: &str) -> anyhow::Result<SocketAddr> {
        let mut addresses = (self.host, self.port)
            .to_socket_addrs()
            .with_context(|| format!("{argument}: {} cannot be resolved", self.host))?;
        let address = addresses
            .next()
            .with_context(|| format!("{argument}: {} has no address", self.host))?;
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(usage(argument, format!("{}: wanted one machine's address", address.ip())));
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_maybe_a_port() {
        for (text, host, port) in [
            ("10.0.0.2", "10.0.0.2", PORT),
            ("10.0.0.2:9", "10.0.0.2", 9),
            ("fd00::2", "fd00::2", PORT),
            ("[fd00::2]:9", "fd00::2", 9),
            ("[fd00::2]", "fd00::2", PORT),
            ("measure-pod.default.svc:5210", "measure-pod.default.svc", 5210),
        ] {
            assert_eq!(Target::parse("ADDR", text).unwrap(), Target { host, port }, "{text}");
        }
        for wrong in [
            "",
            ":5",
            "a b",
            "h:0",
            "h:65535",
            "h:x",
            "[fd00::2",
            "[fd00::2]9",
            "[h]:9",
            "fd00::2:x:y",
        ] {
            let error = Target::parse("ADDR", wrong).unwrap_err();
            assert!(error.downcast_ref::<crate::exit::Usage>().is_some(), "{wrong}: {error}");
        }
    }
}
