//! Loopback ports that are known before a server listens at them, or at which no server ever does.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use parking_lot::Mutex;
use tokio::net::TcpSocket;

/// The reserved sockets, until the process ends.
static RESERVED: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());

/// An address that refuses connections until a server listens at its port by number, with `SO_REUSEADDR` as servers do.
///
/// Its port is bound here for as long as this process lives, at all addresses where the machine has IPv6, and this
/// process never listens at it. So the system assigns it to no other test's server, and to no outgoing connection. A
/// server that listens at all addresses has it whole.
///
/// Servers on Express 5.3 print that they listen before they fail at a taken port: a test that waits for that line
/// alone would reach the other server.
///
/// # Panics
/// If no port is free.
pub fn reserved_address() -> SocketAddr {
    let all = TcpSocket::new_v6().and_then(|socket| bound(socket, (Ipv6Addr::UNSPECIFIED, 0).into()));
    let here = || TcpSocket::new_v4().and_then(|socket| bound(socket, (Ipv4Addr::LOCALHOST, 0).into()));
    let socket = all.or_else(|_| here()).expect("a free port");
    let port = socket.local_addr().expect("the address of a socket that is bound").port();
    RESERVED.lock().push(socket);
    (Ipv4Addr::LOCALHOST, port).into()
}

fn bound(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpSocket> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::ErrorKind;
    use std::net::{IpAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_connections_until_a_listener_binds_its_number() {
        let reserved: Vec<_> = (0..300).map(|_| reserved_address()).collect();
        let addresses: [IpAddr; 3] =
            [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into(), Ipv6Addr::LOCALHOST.into()];
        // On a machine without IPv6 no other server has it there either.
        let others: Vec<_> =
            addresses.iter().flat_map(|at| (0..500).flat_map(|_| TcpListener::bind((*at, 0)))).collect();
        let ports: BTreeSet<_> = reserved.iter().map(SocketAddr::port).collect();
        assert!(others.len() >= 500 && others.iter().all(|other| !ports.contains(&other.local_addr().unwrap().port())));
        let address = reserved[0];
        assert_eq!(TcpStream::connect(address).expect_err("no listener is there").kind(), ErrorKind::ConnectionRefused);
        let _listener = TcpListener::bind(address).expect("who asks for it by number gets it");
        TcpStream::connect(address).expect("a listener is there");
    }
}
