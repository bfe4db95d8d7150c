//! Keys by which requests are limited: the address, a header field, or an extension of an outer layer.

use crate::{ExtractKey, RequestParts};
use axum::extract::ConnectInfo;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderName, HeaderValue, Method};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tollgate::Reason;

/// Limits by the address of the client, cut to a prefix.
///
/// The address is that of the connection ([`peer`](Self::peer)), from axum's [`ConnectInfo`]: serve the router by
/// `into_make_service_with_connect_info::<SocketAddr>()`. Behind proxies it is the address that the outermost of them has seen
/// ([`behind`](Self::behind)). Each proxy appends its peer to `X-Forwarded-For`, so the entry is counted from the right. Entries
/// that a client has forged stand further left, and are not read.
///
/// If the field has fewer entries than there are proxies, or an entry is not an address, the key is the address of the
/// connection. A request without [`ConnectInfo`] has no key. The service is misconfigured: the request is refused as
/// [`Misconfigured`](Reason::Misconfigured), which is a 500.
///
/// An IPv6 address is cut to 64 bits by default, the least that one client has. An IPv4-mapped address counts as IPv4, and so does
/// the address of an IPv4 client behind a translator (NAT64 with the prefix `64:ff9b::/96`). An address of a translator's local
/// prefix, `64:ff9b:1::/48`, is never cut: each IPv4 client has one. A zone (`fe80::1%eth0`) is ignored.
///
/// ```
/// # use axum::extract::ConnectInfo;
/// # use http::Request;
/// # use std::net::{IpAddr, SocketAddr};
/// # use tollgate_http::axum::ClientIp;
/// # use tollgate_http::{ExtractKey, RequestParts};
/// let keys = ClientIp::behind(1).trusting("10.0.0.0".parse().unwrap(), 8);
/// let peer: SocketAddr = "10.0.0.1:4711".parse().unwrap();
/// let request = Request::builder()
///     .header("x-forwarded-for", "8.8.8.8, 203.0.113.7")
///     .extension(ConnectInfo(peer))
///     .body(())
///     .unwrap();
/// assert_eq!(keys.key(&RequestParts::of(&request)), Some(IpAddr::from([203, 0, 113, 7])));
/// // From elsewhere, the field says nothing.
/// let peer: SocketAddr = "198.51.100.9:4711".parse().unwrap();
/// let forged = Request::builder()
///     .header("x-forwarded-for", "203.0.113.7")
///     .extension(ConnectInfo(peer))
///     .body(())
///     .unwrap();
/// assert_eq!(keys.key(&RequestParts::of(&forged)), Some(peer.ip()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp {
    proxies: usize,
    trusted: Vec<(IpAddr, u8)>,
    header: HeaderName,
    v4: u8,
    v6: u8,
}

impl ClientIp {
    /// Uses the address of the connection, and ignores header fields.
    pub fn peer() -> Self {
        Self::behind(0)
    }

    /// Uses the address that the outermost of `proxies` proxies has seen. All requests must come through all of them, or
    /// [`trusting`](Self::trusting) must list them: a client that bypasses them chooses its key.
    pub fn behind(proxies: usize) -> Self {
        Self {
            proxies,
            trusted: Vec::new(),
            header: HeaderName::from_static("x-forwarded-for"),
            v4: 32,
            v6: 64,
        }
    }

    /// Trusts only entries that addresses within `prefix` bits of `network` have appended: the peer of the connection, and each
    /// proxy behind it. It may be called several times. The first address outside is the key. A prefix longer than the address
    /// counts as all of it.
    #[must_use]
    pub fn trusting(mut self, network: IpAddr, prefix: u8) -> Self {
        self.trusted.push((network.to_canonical(), prefix));
        self
    }

    /// Reads `header` in place of `X-Forwarded-For`: addresses, separated by commas.
    #[must_use]
    pub fn header(mut self, header: HeaderName) -> Self {
        self.header = header;
        self
    }

    /// Cuts IPv4 addresses to `bits` bits, at most 32; 32 by default.
    #[must_use]
    pub fn v4_prefix(mut self, bits: u8) -> Self {
        self.v4 = bits.min(32);
        self
    }

    /// Cuts IPv6 addresses to `bits` bits, at most 128; 64 by default.
    #[must_use]
    pub fn v6_prefix(mut self, bits: u8) -> Self {
        self.v6 = bits.min(128);
        self
    }

    fn cut(&self, ip: IpAddr) -> IpAddr {
        match untranslated(ip) {
            v4 @ IpAddr::V4(_) => cut(v4, self.v4),
            IpAddr::V6(v6) if v6.segments()[..3] == LOCAL_TRANSLATION => ip,
            IpAddr::V6(_) => cut(ip, self.v6),
        }
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let within = |&(network, prefix): &(IpAddr, u8)| {
            network.is_ipv4() == peer.is_ipv4() && cut(peer, prefix) == cut(network, prefix)
        };
        self.trusted.is_empty() || self.trusted.iter().any(within)
    }

    /// The address behind the proxies: from the right, past each entry that a trusted address has appended.
    fn forwarded(&self, parts: &RequestParts<'_>, peer: IpAddr) -> Option<IpAddr> {
        // A client may send the field more than once, and so may a proxy: together they are one list.
        let lines = parts.headers().get_all(&self.header).iter().rev();
        let mut entries = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
        let mut seen = peer;
        for _ in 0..self.proxies {
            if !self.trusts(seen) {
                break;
            }
            match entries.next() {
                Some(entry) => seen = address(std::str::from_utf8(entry).ok()?.trim())?,
                // Too few entries: the request has bypassed the proxies.
                None if self.trusted.is_empty() => return None,
                None => break,
            }
        }
        Some(seen)
    }
}

impl ExtractKey for ClientIp {
    type Key = IpAddr;

    fn key(&self, parts: &RequestParts<'_>) -> Option<IpAddr> {
        let ConnectInfo(peer) = parts.extensions().get::<ConnectInfo<SocketAddr>>()?;
        let peer = peer.ip().to_canonical();
        Some(self.cut(self.forwarded(parts, peer).unwrap_or(peer)))
    }

    /// The server must provide the addresses of its connections.
    fn reason(&self) -> Reason {
        Reason::Misconfigured
    }
}

/// The first 48 bits that translators between IPv6 and IPv4 may use within a network (RFC 8215).
const LOCAL_TRANSLATION: [u16; 3] = [0x64, 0xff9b, 1];

/// The IPv4 address of a client whose IPv6 address a translator has made from it (RFC 6052). The first 64 bits of such an address are
/// the same for all clients.
///
/// Only for keys: an address behind a translator is not one that the IPv4 network of a trusted proxy vouches for.
fn untranslated(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            Ipv4Addr::from_bits(v6.to_bits() as u32).into()
        }
        _ => ip,
    }
}

/// An entry without the zone of its IPv6 address (`fe80::1%eth0`, `[fe80::1%eth0]:443`), which only the proxy can tell apart.
fn without_zone(entry: &str) -> Cow<'_, str> {
    let is_v6 = |ip: &str| ip.strip_prefix('[').unwrap_or(ip).parse::<Ipv6Addr>().is_ok();
    match entry.split_once('%') {
        Some((ip, zone)) if is_v6(ip) => Cow::Owned(format!("{ip}{}", &zone[zone.find(']').unwrap_or(zone.len())..])),
        _ => Cow::Borrowed(entry),
    }
}

/// An address, with or without a port.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = &*without_zone(entry);
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']'));
    let ip = bare.unwrap_or(entry).parse::<IpAddr>();
    let ip = ip.or_else(|_| entry.parse::<SocketAddr>().map(|address| address.ip()));
    Some(ip.ok()?.to_canonical())
}

/// The first `bits` bits of an address, and zeros.
fn cut(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

/// Limits by the value of a header field, such as an API key that an outer layer has checked.
///
/// A request without the field, with more than one, or with a value longer than [`MAX_LENGTH`](Self::MAX_LENGTH) has no key.
/// A client that may send any value has any number of keys: check the value first, or rely on the map's bound.
///
/// # Secrets
/// The key of a value that is [marked as sensitive](HeaderValue::set_sensitive) has the mark as well, and its `Debug` hides the value.
/// A limit that machines share writes the keys to its store as they are: give it the hash of a secret, as an
/// [extension](ExtensionKey) of an outer layer.
///
/// ```
/// # use http::{HeaderName, Request};
/// # use tollgate_http::axum::HeaderKey;
/// # use tollgate_http::{ExtractKey, RequestParts};
/// let keys = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let request = Request::builder().header("x-api-key", "abc").body(())?;
/// assert!(keys.key(&RequestParts::of(&request)).is_some());
/// assert!(keys.key(&RequestParts::of(&Request::new(()))).is_none());
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderKey(HeaderName);

impl HeaderKey {
    /// The longest value that is a key, in bytes.
    pub const MAX_LENGTH: usize = 256;

    /// The value of `header`.
    pub fn new(header: HeaderName) -> Self {
        Self(header)
    }
}

impl ExtractKey for HeaderKey {
    type Key = HeaderValue;
    fn key(&self, parts: &RequestParts<'_>) -> Option<HeaderValue> {
        let mut values = parts.headers().get_all(&self.0).iter();
        let value = values.next().filter(|value| value.len() <= Self::MAX_LENGTH)?;
        if values.next().is_some() {
            return None;
        }
        // A copy: the map may keep it for long, and the value shares the connection's read buffer.
        let mut copy = HeaderValue::from_bytes(value.as_bytes()).ok()?;
        copy.set_sensitive(value.is_sensitive());
        Some(copy)
    }
}

/// Limits by an extension of the request, which an outer layer has set, such as a tenant or a user. A request without it has no
/// key, and the service is misconfigured, as with [`ClientIp`]: the outer layer must reject requests without one.
///
/// ```
/// # use http::Request;
/// # use tollgate_http::axum::ExtensionKey;
/// # use tollgate_http::{ExtractKey, RequestParts};
/// #[derive(Clone, Debug, PartialEq, Eq, Hash)]
/// struct User(u64);
/// // An authentication layer outside the limit puts it there.
/// let request = Request::builder().extension(User(7)).body(())?;
/// assert_eq!(ExtensionKey::<User>::new().key(&RequestParts::of(&request)), Some(User(7)));
/// # Ok::<(), http::Error>(())
/// ```
pub struct ExtensionKey<T>(PhantomData<fn() -> T>);

impl<T> ExtensionKey<T> {
    /// The extension of type `T`.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for ExtensionKey<T> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<T> fmt::Debug for ExtensionKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey({})", std::any::type_name::<T>())
    }
}

impl<T: Clone + Send + Sync + 'static> ExtractKey for ExtensionKey<T> {
    type Key = T;
    fn key(&self, parts: &RequestParts<'_>) -> Option<T> {
        parts.extensions().get().cloned()
    }

    /// An outer layer must set the extension, or reject the request.
    fn reason(&self) -> Reason {
        Reason::Misconfigured
    }
}

/// True for a CORS preflight, for [`LimitLayer::exempt`](crate::LimitLayer::exempt). The browser sends it on its own, and its
/// refusal would hide the status of the real request. Any client can send one: put the layer that answers them outside the
/// limit, or make sure that they cost nothing.
pub fn is_preflight(parts: &RequestParts<'_>) -> bool {
    let has = |name| parts.headers().contains_key(name);
    parts.method() == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}
