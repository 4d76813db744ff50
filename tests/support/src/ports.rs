//! Ports of the loopback that are told before somebody listens at them, or at which nobody ever does.

use std::net::{Ipv4Addr, SocketAddr};

use parking_lot::Mutex;
use tokio::net::TcpSocket;

/// What was reserved, until the process ends.
static RESERVED: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());

/// An address that refuses connections until somebody listens at its port by number, with `SO_REUSEADDR` as servers do.
///
/// It is bound here for as long as this process lives, and is never listened at by it. So the system gives it to nobody who
/// leaves the choice of a port to it: not to the other tests' servers, and to no connection that goes out.
///
/// Servers on Express 5.3 say that they listen where their port is taken, and end then: who waits for that word alone meets whoever
/// has the port.
///
/// # Panics
/// If no port is free.
pub fn reserved_address() -> SocketAddr {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket's option");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let address = socket.local_addr().expect("the address of a socket that is bound");
    RESERVED.lock().push(socket);
    address
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_connections_until_somebody_listens_there_by_number() {
        let address = reserved_address();
        let others: Vec<_> = (0..500).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        assert!(others.iter().all(|other| other.local_addr().is_ok_and(|taken| taken != address)));
        assert_eq!(TcpStream::connect(address).expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
        let _listener = TcpListener::bind(address).expect("who asks for it by number gets it");
        TcpStream::connect(address).expect("somebody listens");
    }
}
