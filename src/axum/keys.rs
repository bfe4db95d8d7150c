//! By what a request is limited: its address, a header field, or what an outer layer has found out.

use crate::core::refusal::Reason;
use crate::tower::{ExtractKey, Head};
use axum::extract::ConnectInfo;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderName, HeaderValue, Method};
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address of the client, cut to a prefix: the key of a request by who sends it.
///
/// The address is that of the connection ([`peer`](Self::peer)), as axum's [`ConnectInfo`] says it: serve the router by
/// `into_make_service_with_connect_info::<SocketAddr>()`. Behind proxies it is what the outermost of them has seen
/// ([`behind`](Self::behind)): each proxy appends to `X-Forwarded-For` from whom it has the request, so that the entry which
/// counts is found from the right. Whatever a client has written itself stands further left, and is not read.
///
/// A field with fewer entries than there are proxies, or one that is no address, says nothing: the key is the address of the
/// connection then. A request without [`ConnectInfo`] has no key, and the service is to blame: it is refused as
/// [`Misconfigured`](Reason::Misconfigured), which is a 500.
///
/// An IPv6 address is cut to 64 bits unless set, since that is what one client has at least; one that stands for an IPv4
/// address counts as that.
///
/// ```
/// # use axum::extract::ConnectInfo;
/// # use http::Request;
/// # use std::net::{IpAddr, SocketAddr};
/// # use tollgate::axum::ClientIp;
/// # use tollgate::tower::{ExtractKey, Head};
/// let keys = ClientIp::behind(1).trusting("10.0.0.0".parse().unwrap(), 8);
/// let peer: SocketAddr = "10.0.0.1:4711".parse().unwrap();
/// let request = Request::builder()
///     .header("x-forwarded-for", "8.8.8.8, 203.0.113.7")
///     .extension(ConnectInfo(peer))
///     .body(())
///     .unwrap();
/// assert_eq!(keys.key(&Head::of(&request)), Some(IpAddr::from([203, 0, 113, 7])));
/// // From elsewhere, the field says nothing.
/// let peer: SocketAddr = "198.51.100.9:4711".parse().unwrap();
/// let forged = Request::builder()
///     .header("x-forwarded-for", "203.0.113.7")
///     .extension(ConnectInfo(peer))
///     .body(())
///     .unwrap();
/// assert_eq!(keys.key(&Head::of(&forged)), Some(peer.ip()));
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
    /// The address of the connection, whatever header fields say.
    pub fn peer() -> Self {
        Self::behind(0)
    }

    /// The address that the outermost of `proxies` proxies has seen. All requests must come through all of them, or
    /// [`trusting`](Self::trusting) must say who they are: whoever reaches the service past them chooses the key.
    pub fn behind(proxies: usize) -> Self {
        Self {
            proxies,
            trusted: Vec::new(),
            header: HeaderName::from_static("x-forwarded-for"),
            v4: 32,
            v6: 64,
        }
    }

    /// Believes only what addresses within `prefix` bits of `network` have appended, and may be called several times: of the
    /// connection, and of each proxy behind it. Whoever else is met first is the key. A prefix longer than the address counts as all of it.
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

    /// Cuts IPv4 addresses to so many bits, at most 32; 32 unless set.
    #[must_use]
    pub fn v4_prefix(mut self, bits: u8) -> Self {
        self.v4 = bits.min(32);
        self
    }

    /// Cuts IPv6 addresses to so many bits, at most 128; 64 unless set.
    #[must_use]
    pub fn v6_prefix(mut self, bits: u8) -> Self {
        self.v6 = bits.min(128);
        self
    }

    fn cut(&self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(_) => cut(ip, self.v4),
            IpAddr::V6(_) => cut(ip, self.v6),
        }
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let within = |&(network, prefix): &(IpAddr, u8)| {
            network.is_ipv4() == peer.is_ipv4() && cut(peer, prefix) == cut(network, prefix)
        };
        self.trusted.is_empty() || self.trusted.iter().any(within)
    }

    /// Who is behind the proxies: from the right, over each entry that somebody who is trusted has appended.
    fn forwarded(&self, head: &Head<'_>, peer: IpAddr) -> Option<IpAddr> {
        // A client may send the field more than once, and so may a proxy: together they are one list.
        let lines = head.headers().get_all(&self.header).iter().rev();
        let mut entries = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
        let mut seen = peer;
        for _ in 0..self.proxies {
            if !self.trusts(seen) {
                break;
            }
            match entries.next() {
                Some(entry) => seen = address(std::str::from_utf8(entry).ok()?.trim())?,
                // Fewer than there must be: somebody came past the proxies.
                None if self.trusted.is_empty() => return None,
                None => break,
            }
        }
        Some(seen)
    }
}

impl ExtractKey for ClientIp {
    type Key = IpAddr;

    fn key(&self, head: &Head<'_>) -> Option<IpAddr> {
        let ConnectInfo(peer) = head.extensions().get::<ConnectInfo<SocketAddr>>()?;
        let peer = peer.ip().to_canonical();
        Some(self.cut(self.forwarded(head, peer).unwrap_or(peer)))
    }

    /// Whoever serves the router has to tell where connections come from.
    fn reason(&self) -> Reason {
        Reason::Misconfigured
    }
}

/// An address, with or without a port.
fn address(entry: &str) -> Option<IpAddr> {
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

/// The value of a header field: the key of a request by what it shows, such as an API key that has been checked outside.
///
/// A request without the field, with more than one, or with a value longer than [`MAX_LENGTH`](Self::MAX_LENGTH) has no key.
/// Whoever may write any value has as many keys: check it first, or let the map's bound be the limit.
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
    fn key(&self, head: &Head<'_>) -> Option<HeaderValue> {
        let mut values = head.headers().get_all(&self.0).iter();
        let value = values.next().filter(|value| value.len() <= Self::MAX_LENGTH)?;
        if values.next().is_some() {
            return None;
        }
        // A copy: the map may keep it for long, and the value is a part of what was read from the connection.
        HeaderValue::from_bytes(value.as_bytes()).ok()
    }
}

/// An extension of the request: the key that an outer layer has found out, such as a tenant or a user. A request without it
/// has no key, and the service is to blame, as with [`ClientIp`]: let the outer layer turn away who has none.
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
    fn key(&self, head: &Head<'_>) -> Option<T> {
        head.extensions().get().cloned()
    }

    /// An outer layer has to put it there, or to turn away who has none.
    fn reason(&self) -> Reason {
        Reason::Misconfigured
    }
}

/// True of a CORS preflight, for [`LimitLayer::exempt`](crate::tower::LimitLayer::exempt): a browser asks on its own account
/// whether it may ask, and a refusal would hide the real one. Anybody can send such a request: put the layer that answers them
/// outside the limit, or see to it that they cost nothing.
pub fn is_preflight(head: &Head<'_>) -> bool {
    let has = |name| head.headers().contains_key(name);
    head.method() == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}
