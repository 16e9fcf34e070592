"""The serializers' pure core: wire format, subjects, the registry's requests and answers, plain formats."""
