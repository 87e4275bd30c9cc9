//! Which host names and origins are accepted.
//!
//! A web page can make a browser send requests to this machine: directly (then its origin is
//! foreign), or by a name that its owner lets resolve to this machine (then the host is foreign).
//! An IP address is not resolved, so it is as safe as `localhost`.

use std::net::IpAddr;

use super::Options;

/// Whether a `Host` header, or the authority of an origin, names this server.
pub(super) fn is_ours(authority: &str, options: &Options) -> bool {
    let Some(host) = host_of(authority) else { return false };
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || !options.address.ip().is_loopback(),
        Err(_) => {
            let is_it = |name: &str| name.eq_ignore_ascii_case(host);
            is_it("localhost") || options.allowed_hosts.iter().any(|name| is_it(name))
        }
    }
}

/// Whether an `Origin` header belongs to a page that may use this server.
pub(super) fn is_own_origin(origin: &str, options: &Options) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| is_ours(authority, options))
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

    fn options(address: &str) -> Options {
        let allowed_hosts = vec!["box.lan".to_owned()];
        Options { allowed_hosts, ..Options::new(address.parse().unwrap()) }
    }

    #[test]
    fn only_names_and_addresses_of_this_machine_are_ours() {
        let local = options("127.0.0.1:8080");
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:80", "box.lan:8080"] {
            assert!(is_ours(host, &local), "{host}");
        }
        for host in [
            "",
            "evil.com",
            "localhost.evil.com",
            "localhost:evil",
            "evil.com:8080",
            "10.0.0.1",
            "user@localhost",
            "[::1]evil",
            "localhost:1:2",
        ] {
            assert!(!is_ours(host, &local), "{host}");
        }
        assert!(is_ours("10.0.0.1:8080", &options("0.0.0.0:8080")));
        assert!(!is_ours("evil.com", &options("0.0.0.0:8080")));
    }

    #[test]
    fn origins_are_schemes_and_hosts() {
        let local = options("127.0.0.1:8080");
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://box.lan"] {
            assert!(is_own_origin(origin, &local), "{origin}");
        }
        for origin in [
            "null",
            "",
            "localhost",
            "http://localhost.evil.com",
            "http://evil.com",
            "http://localhost/evil",
            "file://localhost",
        ] {
            assert!(!is_own_origin(origin, &local), "{origin}");
        }
    }
}
