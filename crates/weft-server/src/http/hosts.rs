//! Which host names and origins are accepted.
//!
//! A web page can make a browser send requests to this machine: directly (then its origin is
//! foreign), or by a name that its owner lets resolve to this machine (then the host is foreign).
//! An address is not resolved, but a stranger's page can lie at a bare address too. So an address
//! is accepted only if it is loopback, allowed, or the one that the client connected to.

use std::net::IpAddr;

use super::Options;

/// Whether a `Host` header names this server. `local` is the address of this side of the
/// connection, if it has one.
pub(super) fn is_ours(host: &str, local: Option<IpAddr>, options: &Options) -> bool {
    let is_local = |address: IpAddr| local.is_some_and(|local| local.to_canonical() == address);
    is_known(host, options) || address_of(host).is_some_and(is_local)
}

/// Whether an `Origin` header belongs to a page that may use this server: the server's own page,
/// which has the request's `Host`, or one at a known name. The `Host` has been checked.
pub(super) fn is_own_origin(origin: &str, host: &str, options: &Options) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| {
        authority.eq_ignore_ascii_case(host) || is_known(authority, options)
    })
}

/// Whether `host[:port]` is `localhost`, a loopback address, or allowed by the operator.
fn is_known(authority: &str, options: &Options) -> bool {
    let Some(host) = host_of(authority) else { return false };
    let mut allowed = options.allowed_hosts.iter();
    match address_of(authority) {
        Some(address) => {
            let is_it = |name: &String| parse_address(name) == Some(address);
            address.is_loopback() || allowed.any(is_it)
        }
        None => {
            let is_it = |name: &str| name.eq_ignore_ascii_case(host);
            is_it("localhost") || allowed.any(|name| is_it(name))
        }
    }
}

/// The address in `host[:port]`, if the host is one.
fn address_of(authority: &str) -> Option<IpAddr> {
    parse_address(host_of(authority)?)
}

fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// The host of `host[:port]`, without the brackets of an IPv6 address.
fn host_of(authority: &str) -> Option<&str> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(host);
    }
    match authority.split_once(':') {
        Some((host, port)) => is_port(port).then_some(host),
        None => Some(authority),
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let allowed_hosts = vec!["box.lan".to_owned(), "10.0.0.9".to_owned()];
        Options { allowed_hosts, ..Options::new("127.0.0.1:8080".parse().unwrap()) }
    }

    fn is_ours_at(host: &str, local: &str) -> bool {
        is_ours(host, Some(local.parse().unwrap()), &options())
    }

    #[test]
    fn only_names_and_addresses_of_this_machine_are_ours() {
        for host in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:80", "box.lan:8080", "10.0.0.9:1"]
        {
            assert!(is_ours_at(host, "127.0.0.1"), "{host}");
            assert!(is_ours(host, None, &options()), "{host}");
        }
        for host in [
            "",
            "evil.com",
            "localhost.evil.com",
            "localhost:evil",
            "evil.com:8080",
            "10.0.0.1",
            "0.0.0.0",
            "user@localhost",
            "[::1]evil",
            "localhost:1:2",
        ] {
            assert!(!is_ours_at(host, "127.0.0.1"), "{host}");
            assert!(!is_ours(host, None, &options()), "{host}");
        }
    }

    #[test]
    fn an_address_is_ours_if_the_client_connected_to_it() {
        assert!(is_ours_at("10.0.0.1:8080", "10.0.0.1"));
        // A socket that is bound to `::` gets IPv4 clients too.
        assert!(is_ours_at("10.0.0.1:8080", "::ffff:10.0.0.1"));
        assert!(is_ours_at("[fd00::1]:8080", "fd00::1"));
        for other in ["10.0.0.2:8080", "0.0.0.0:8080", "[fd00::1]", "6.6.6.6", "evil.com"] {
            assert!(!is_ours_at(other, "10.0.0.1"), "{other}");
        }
    }

    #[test]
    fn origins_are_schemes_and_hosts() {
        let is_own = |origin| is_own_origin(origin, "10.0.0.1:8080", &options());
        for origin in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://box.lan",
            "http://10.0.0.9:3000",
            "http://10.0.0.1:8080",
        ] {
            assert!(is_own(origin), "{origin}");
        }
        for origin in [
            "null",
            "",
            "localhost",
            "http://localhost.evil.com",
            "http://evil.com",
            "http://localhost/evil",
            "file://localhost",
            "http://6.6.6.6",
            "http://6.6.6.6:8080",
            "http://10.0.0.1:3000",
            "http://10.0.0.1",
        ] {
            assert!(!is_own(origin), "{origin}");
        }
    }
}
