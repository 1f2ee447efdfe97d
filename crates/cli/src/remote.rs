//! Addresses and tokens of the verbs that use two machines.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::Context;
use channel::{Event, Token};
use measure::remote::PORT;

use crate::exit::usage;
use crate::output::complain;

/// Reads the file of `--token`.
///
/// # Errors
/// A usage error that names the file and the problem.
pub fn token(file: Option<&Path>) -> anyhow::Result<Option<Token>> {
    file.map(Token::read).transpose().map_err(|error| usage("--token", error))
}

/// Logs a session event as a line on standard error.
pub fn tell(event: Event) {
    complain(&line(event));
}

/// Describes a session event in a line.
pub fn line(event: Event) -> String {
    match event {
        Event::Opened(client) => format!("{client}: session opened"),
        Event::Closed(client, why) => format!("{client}: session closed: {why}"),
        Event::TurnedAway(client, why) => format!("{client}: refused: {why}"),
        Event::MoreTurnedAway { count, over, most } => {
            let most = most.map_or_else(String::new, |most| format!(", most from {most}"));
            let seconds = over.as_secs_f64();
            format!("{count} more connections refused in the last {seconds:.0} s{most}")
        }
    }
}

/// Address family of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// An address `HOST[:PORT]`. HOST is a name, an IPv4 address, or an IPv6 address, which needs
/// brackets if a port follows.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Host name or IP address, without brackets.
    pub host: &'a str,
    /// TCP port of the control connection. The data port is the next one.
    pub port: u16,
}

impl<'a> Target<'a> {
    /// Parses an address. Port 65535 is invalid, because the data port would be beyond it.
    ///
    /// # Errors
    /// A usage error.
    pub fn parse(argument: &str, text: &'a str) -> anyhow::Result<Target<'a>> {
        Target::parse_with(argument, text, PORT)
    }

    /// Like [`Target::parse`], with another default port.
    ///
    /// # Errors
    /// A usage error.
    pub fn parse_with(argument: &str, text: &'a str, port: u16) -> anyhow::Result<Target<'a>> {
        let default = port;
        let wanted =
            || usage(argument, format!("{text:?}: expected HOST, HOST:PORT or [IPV6]:PORT"));
        // The colons of such an address would be taken for a port.
        if text.contains('%') {
            return Err(link_local(argument, text));
        }
        // Check for a plain address first: an IPv6 address contains colons that are not a port.
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
        // A usage error (exit code 2) instead of the error of the resolver.
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

    /// Resolves the first address.
    ///
    /// # Errors
    /// An unknown name; an unspecified or multicast address.
    pub fn resolve(&self, argument: &str) -> anyhow::Result<SocketAddr> {
        self.resolve_in(argument, None)
    }

    /// As [`Target::resolve`]; a name only in one family. An address has its own.
    ///
    /// # Errors
    /// As [`Target::resolve`]; a name without an address of the family.
    pub fn resolve_in(&self, argument: &str, family: Option<Family>) -> anyhow::Result<SocketAddr> {
        let is_name = self.host.parse::<std::net::IpAddr>().is_err();
        let family = family.filter(|_| is_name);
        let mut addresses = (self.host, self.port)
            .to_socket_addrs()
            .with_context(|| format!("{argument}: {} cannot be resolved", self.host))?;
        let is_wanted = |address: &SocketAddr| match family {
            Some(Family::V4) => address.is_ipv4(),
            Some(Family::V6) => address.is_ipv6(),
            None => true,
        };
        let kind = family.map_or("", |family| match family {
            Family::V4 => "IPv4 ",
            Family::V6 => "IPv6 ",
        });
        let address = addresses
            .find(is_wanted)
            .with_context(|| format!("{argument}: {} has no {kind}address", self.host))?;
        // The kernel needs the device, too.
        if matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Err(link_local(argument, &address.ip().to_string()));
        }
        // Neither names a single machine to measure.
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(usage(argument, format!("{}: expected a unicast address", address.ip())));
        }
        Ok(address)
    }
}

fn link_local(argument: &str, address: &str) -> anyhow::Error {
    usage(argument, format!("{address:?} is link-local: expected a global or private address"))
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
        let loopback = Target::parse("ADDR", "127.0.0.1").unwrap();
        let own = loopback.resolve_in("ADDR", Some(Family::V6)).unwrap();
        assert!(own.is_ipv4(), "an address has its own family");
        let of_link = Target::parse("ADDR", "fe80::2").unwrap().resolve("ADDR").unwrap_err();
        assert!(of_link.to_string().contains("link-local"), "{of_link}");
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
            "fe80::2%eth0",
            "[fe80::2%eth0]:9",
        ] {
            let error = Target::parse("ADDR", wrong).unwrap_err();
            assert!(error.downcast_ref::<crate::exit::Usage>().is_some(), "{wrong}: {error}");
        }
    }
}
