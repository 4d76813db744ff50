//! The counters of gateways for a request that one forwards to another.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::client::call;
use super::leaving::{in_front_of, listed};
use super::upstream::ScriptedServer;

/// All gateways of the test count here: they are in its thread.
#[test]
fn a_request_that_is_passed_on_is_counted_once() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counted = |outcome: &str| {
        let series = format!("taskgate_requests_total{{upstream=\"up\",outcome=\"{outcome}\"}} ");
        let page = page.render();
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("no {series} in {page}")).parse::<u32>().unwrap()
    };
    let asking = async {
        for is_endpoint in [false, true] {
            let server = ScriptedServer::start(listed).await;
            let mut replicas = in_front_of(&server, is_endpoint).await;
            let here = replicas.client().await;
            // The first one at an endpoint is asked for the list of tools as well.
            for at in [0, 0, 1, 2] {
                let before = counted("answered");
                assert_eq!(replicas.at(at, &here).post(call(1)).await.json().await["result"]["n"], 1);
                assert!(counted("answered") == before + 1 || at == 0, "{is_endpoint} {at}");
            }
            let there = replicas.at(1, &here);
            replicas.kill(0);
            let before = counted("refused");
            assert_eq!(there.delete().await.status, 503);
            // The endpoint is no upstream.
            assert_eq!(counted("refused") - before, u32::from(!is_endpoint), "no other replica answered it");
        }
    };
    metrics::with_local_recorder(&recorder, || runtime.block_on(asking));
}
