//! Responds to clients while the store is unavailable at the start.

use async_trait::async_trait;

use super::admitted_request::refuse_all;
use super::http::{Endpoint, FaceResponse, Inbound};
use crate::task::{Executed, GatewayFault, Reason};

const FAULT: GatewayFault = GatewayFault::new(Reason::StoreFailed, Executed::No);

#[derive(Debug)]
pub struct StoreAwayEndpoint;

#[async_trait]
impl Endpoint for StoreAwayEndpoint {
    async fn serve(&self, request: Inbound) -> FaceResponse {
        refuse_all(&request, &FAULT)
    }
}
