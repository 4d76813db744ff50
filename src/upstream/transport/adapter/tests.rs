//! A transport for tests, which send the server's messages.

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::*;

/// One connection. The server never ends it.
#[derive(Debug)]
pub(super) struct SpeakingTransport {
    said: Mutex<Option<mpsc::Receiver<Bytes>>>,
    sender: Arc<dyn MessageSender>,
}

impl SpeakingTransport {
    /// The transport, and a channel for the server's messages.
    pub(super) fn new(sender: Arc<dyn MessageSender>) -> (Self, mpsc::Sender<Bytes>) {
        let (say, said) = mpsc::channel(8);
        (Self { said: Mutex::new(Some(said)), sender }, say)
    }
}

struct SpeakingReceiver(mpsc::Receiver<Bytes>);

#[async_trait]
impl MessageTransport for SpeakingTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let said = self.said.lock().take().unwrap();
        Ok(ConnectionEnds { sender: Arc::clone(&self.sender), receiver: Box::new(SpeakingReceiver(said)) })
    }
}

#[async_trait]
impl MessageReceiver for SpeakingReceiver {
    async fn next(&mut self, _: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        match self.0.recv().await {
            Some(text) => Ok(text),
            None => std::future::pending().await,
        }
    }
}
