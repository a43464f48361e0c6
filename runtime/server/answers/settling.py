"""The defaults of a request: see runtime.options for the rule."""

from anespec.runtime.options import GenerationOptions, usual_in_conversation
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.server.models import ServingModel


def settled(
    options: GenerationOptions, model: ServingModel, *usual_here: SamplingParameters
) -> GenerationOptions:
    """The options of a request to a model, with what holds where it says nothing.

    `usual_here` is what is usual at an endpoint alone; it goes before what is usual everywhere.
    """
    return model.settled(options).completed_by(*usual_here, usual_in_conversation())
