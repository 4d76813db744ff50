//! Measures the size of a request's futures.

use super::{CallDecision, MessageContext, StatelessFace, StatelessRequestContext};
use crate::wire::envelope::Request;

const fn returned_bytes<A, R>(_: fn(A) -> R) -> usize {
    size_of::<R>()
}

/// A future is copied as a whole wherever another awaits it: rare branches are boxed, so that no request moves their
/// memory.
#[test]
fn no_step_of_a_request_moves_the_memory_of_a_rare_one() {
    type Face = &'static StatelessFace;
    type Context = StatelessRequestContext<'static>;
    type Whole = (Face, &'static Request, MessageContext<'static>);
    let sizes = [
        ("serve", returned_bytes(|(face, request, around): Whole| face.serve(request, around))),
        ("dispatch", returned_bytes(|(face, request): (Face, Box<Context>)| face.dispatch(request))),
        ("call_tool", returned_bytes(|(face, request): (Face, Box<Context>)| face.call_tool(request))),
        ("decide_call", returned_bytes(|(face, request): (Face, &'static Context)| face.decide_call(request))),
        (
            "run_call",
            returned_bytes(|(face, request, call): (Face, Box<Context>, &'static CallDecision)| {
                face.run_call(request, call)
            }),
        ),
        ("pass", returned_bytes(|(face, request): (Face, Box<Context>)| face.pass(request))),
        ("task", returned_bytes(|(face, request): (Face, &'static Context)| face.task(request))),
    ];
    println!("{sizes:?}");
    for (step, bytes) in sizes {
        assert!(bytes <= 2_048, "{step}: {bytes}");
    }
}
